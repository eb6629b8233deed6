//! `Knob`: every number that describes a machine, defined once in the table at the end of this file.
//!
//! The enum, the names in machine files, the bounds that values are held to, what each means and the reference that
//! `wordline twin knobs` prints all derive from the table.

/// What values a knob takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A real number.
    Real,
    /// A whole number.
    Count,
    /// 0 or 1.
    Flag,
}

/// Which way a knob makes a machine faster, for the search of the bottleneck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// More of it.
    More,
    /// Less of it.
    Less,
    /// It describes a choice, a size or a cost that no step gets faster by.
    Neither,
}

/// A knob as the table describes it.
#[derive(Clone, Copy, Debug)]
pub struct KnobInfo {
    /// Which.
    pub knob: Knob,
    /// `section.name`, as machine files and `--set` write it.
    pub name: &'static str,
    /// Unit of its value.
    pub unit: &'static str,
    /// Smallest value; a positive one means that zero is refused.
    pub min: f64,
    /// Largest value.
    pub max: f64,
    /// What values it takes.
    pub kind: Kind,
    /// Which way is faster.
    pub better: Better,
    /// Value where neither the file nor its class says otherwise.
    pub default: f64,
    /// What it means.
    pub meaning: &'static str,
}

macro_rules! knobs {
    ($($variant:ident $name:literal $unit:literal $kind:ident $better:ident ($min:expr, $max:expr) = $default:expr, $meaning:literal;)+) => {
        /// One number that describes a machine.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(usize)]
        pub enum Knob { $(#[doc = $meaning] $variant,)+ }

        /// Every knob, in the order of the enum.
        pub const KNOBS: &[KnobInfo] = &[$(KnobInfo {
            knob: Knob::$variant, name: $name, unit: $unit, min: $min, max: $max, kind: Kind::$kind,
            better: Better::$better, default: $default, meaning: $meaning,
        },)+];
    };
}

impl Knob {
    /// The table's row.
    #[must_use]
    pub fn info(self) -> &'static KnobInfo {
        &KNOBS[self as usize]
    }

    /// The knob of a name.
    #[must_use]
    pub fn named(name: &str) -> Option<Knob> {
        KNOBS.iter().find(|k| k.name == name).map(|k| k.knob)
    }

    /// The name most like one that no knob has.
    #[must_use]
    pub fn nearest(name: &str) -> Option<&'static str> {
        let like = |k: &KnobInfo| strsim::jaro_winkler(k.name, name);
        let best = KNOBS.iter().max_by(|a, b| like(a).total_cmp(&like(b)))?;
        (like(best) > 0.7).then_some(best.name)
    }
}

impl std::fmt::Display for Knob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.info().name)
    }
}

/// Largest count of lanes, rows and the like: far above any machine, far below what overflows a sum of cycles.
const MANY: f64 = 1e9;

knobs! {
    CoreMhz "clock.core_mhz" "MHz" Real More (1.0, 1e5) = 1000.0,
        "clock of the array, the vector unit and the sequencer; every cycle is one of it";

    LanesN "array.lanes_n" "outputs" Count More (1.0, MANY) = 64.0, "outputs of a matrix that the array works on at a time";
    LanesK "array.lanes_k" "inputs" Count More (1.0, MANY) = 32.0, "inputs of a matrix that the array takes in a cycle";
    MacsPerLane "array.macs_per_lane" "MACs a cycle" Real More (1e-6, 1e6) = 1.0,
        "multiply-accumulates of `array.bits` that a lane does in a cycle";
    ArrayBits "array.bits" "bits" Count More (1.0, 64.0) = 8.0,
        "width of an operand that a lane multiplies in one pass; wider ones take more passes";
    Narrow "array.narrow" "times" Real More (1.0, 64.0) = 1.0,
        "rate on operands of half that width or less, against `array.bits`";
    RowTile "array.row_tile" "token-rows" Count Less (1.0, 65536.0) = 1.0,
        "token-rows that the array works on together: a step's rows are rounded up to a multiple";
    GroupRows "array.group_rows" "token-rows" Count Neither (0.0, MANY) = 0.0,
        "token-rows that lanes take one after the other, where further ones fill lanes beside the outputs; 0: all one after the other";
    StreamRows "array.stream_rows" "token-rows" Count More (0.0, MANY) = 0.0,
        "token-rows that share one stream of the weights; 0: all of a step's";
    Utilisation "array.utilisation" "share" Real More (1e-3, 1.0) = 1.0,
        "share of its peak that the array reaches when arithmetic is the limit";
    FillCycles "array.fill_cycles" "cycles" Real Less (0.0, 1e7) = 0.0, "filling and draining the array, once a command";
    ScaleLanes "array.scale_lanes" "block scales a cycle" Real More (0.0, MANY) = 0.0,
        "block sums times their scales, one a block and token-row; 0: keeps up with the lanes";
    UnpackOps "array.unpack_ops" "micro-operations" Real Less (0.0, 1e4) = 0.0,
        "vector micro-operations that widening a weight to 16 bits takes (to 8: half of it), once a stream; 0: the array widens";

    PeakGbps "memory.peak_gbps" "GB/s" Real More (1e-3, 1e6) = 100.0, "bandwidth of the memory's pins: width times rate";
    Attainable "memory.attainable" "share" Real More (1e-3, 1.0) = 1.0,
        "share of the pins' bandwidth that plain reads of a long array reach: refresh, turn-round, power; every efficiency is a share of this";
    PortBytes "memory.port_bytes" "bytes a cycle" Real More (0.0, MANY) = 0.0,
        "bytes that a channel hands over in a cycle of `clock.core_mhz`, where the logic's clock bounds it; 0: what the pins bring";
    CapacityGb "memory.capacity_gb" "GB" Real Neither (1e-6, 1e7) = 16.0, "size of the memory, 1e9 bytes";
    ReservedGb "memory.reserved_gb" "GB" Real Neither (0.0, 1e7) = 0.0, "memory that weights, caches and states may not have";
    Channels "memory.channels" "channels" Count More (1.0, 65536.0) = 1.0, "channels that take requests of their own";
    BurstBytes "memory.burst_bytes" "bytes" Count More (1.0, 65536.0) = 64.0, "bytes of a request; transfers are whole requests";
    LatencyNs "memory.latency_ns" "ns" Real Less (0.0, 1e7) = 100.0, "from a request to its first byte";
    Outstanding "memory.outstanding" "requests" Count More (0.0, MANY) = 0.0,
        "requests of a channel in flight; with latency and burst they bound the bandwidth; 0: as many as it takes";

    WeightsEfficiency "weights.efficiency" "share" Real More (1e-3, 1.0) = 0.85,
        "share of what is attainable that long reads of weights reach";
    WeightsRamp "weights.ramp_us" "us" Real Less (0.0, 1e6) = 0.0,
        "time of a read of weights beyond its bytes: the efficiency of a transfer of b bytes is rate * b / (b + ramp * rate), where rate = peak * attainable * efficiency";
    KvEfficiency "kv.efficiency" "share" Real More (1e-3, 1.0) = 0.7, "share of what is attainable that long reads of a cache reach";
    KvRamp "kv.ramp_us" "us" Real Less (0.0, 1e6) = 0.0, "as `weights.ramp_us`, for the cache";
    StateEfficiency "state.efficiency" "share" Real More (1e-3, 1.0) = 0.5,
        "share of what is attainable that reading and writing back a memory or a ring reaches";
    StateRamp "state.ramp_us" "us" Real Less (0.0, 1e6) = 0.0, "as `weights.ramp_us`, for states";

    SramMib "sram.capacity_mib" "MiB" Real Neither (0.0, 1e7) = 0.0, "memory on the chip, all of it";
    SramGbps "sram.gbps" "GB/s" Real More (1e-3, 1e8) = 10000.0, "bandwidth of the memory on the chip: token-rows, and what else lives there";
    SramWeightsMib "sram.weights_mib" "MiB" Real More (0.0, 1e7) = 0.0, "weights that stay on the chip and leave the memory alone";
    PrefetchMib "sram.prefetch_mib" "MiB" Real More (0.0, 1e7) = 0.0, "room for weights that arrive before their command";
    StateInSram "sram.state" "0 or 1" Flag More (0.0, 1.0) = 0.0,
        "memories and rings live on the chip, as far as the room beside weights and prefetch goes; the rest lives in memory";

    VectorLanes "vector.lanes" "elements a cycle" Count More (1.0, MANY) = 16.0, "elements on which the vector unit does one micro-operation in a cycle";
    VectorLatency "vector.latency_cycles" "cycles" Real Less (0.0, 1e6) = 20.0, "from the first element in to the first one out, once a pass and a trip (`vector.row_lanes`)";
    RowLanes "vector.row_lanes" "elements" Count More (0.0, MANY) = 0.0,
        "elements of one token-row that are on their way at a time, where a row stays with one group of threads: longer rows make trips, each of `vector.latency_cycles`; 0: a row makes one trip";
    NormPasses "vector.norm_passes" "passes" Count Less (1.0, 16.0) = 2.0, "passes over a vector that a norm takes";
    ExpCycles "vector.exp_cycles" "micro-operations" Real Less (0.0, 1e4) = 4.0, "micro-operations of one exp, tanh, sigmoid or root";

    AttendLanes "attend.lanes" "MACs a cycle" Count More (1.0, MANY) = 256.0, "multiply-accumulates of q.k and p.v in a cycle";
    AttendBits "attend.bits" "bits" Count More (1.0, 64.0) = 8.0, "width of an operand that an attend lane multiplies in one pass";
    SoftmaxLanes "attend.softmax_lanes" "scores a cycle" Real More (1e-3, MANY) = 16.0, "scores on which the softmax does one pass in a cycle";
    SoftmaxPasses "attend.softmax_passes" "passes" Count Less (1.0, 16.0) = 2.0, "passes over the scores that a softmax takes";
    RowShare "attend.row_share" "token-rows" Count More (1.0, MANY) = 1.0, "token-rows of one sequence that share a read of its cache";
    PositionNs "attend.position_ns" "ns" Real Less (0.0, 1e6) = 0.0, "serial time of a position, whatever its width: for kernels that wait on each";

    ConvLanes "conv.lanes" "MACs a cycle" Count More (1.0, MANY) = 16.0, "multiply-accumulates of the convolution in a cycle";
    DeltaLanes "delta.lanes" "MACs a cycle" Count More (1.0, MANY) = 128.0, "multiply-accumulates of the delta rule in a cycle";
    DeltaTrips "delta.round_trips" "times" Count Less (1.0, 16.0) = 1.0, "times a memory is read and written back by a use of it";
    DeltaHold "delta.hold" "0 or 1" Flag More (0.0, 1.0) = 1.0, "a memory stays on the chip over the rows that a sequence has in a step";

    WordCycles "sequencer.word_cycles" "cycles" Real Less (0.0, 1e7) = 4.0, "fetching and decoding a word";
    BarrierCycles "sequencer.barrier_cycles" "cycles" Real Less (0.0, 1e7) = 8.0, "from a command's last result to the next one's start";
    CommandUs "sequencer.command_us" "us" Real Less (0.0, 1e6) = 0.0,
        "time of a command beyond its work: a kernel's launch and its ends, a program's dispatch to the tiles";
    Merge "sequencer.merge" "0, 1 or 2" Count More (0.0, 2.0) = 0.0,
        "what costs no `command_us` because it is part of the kernel before: 1, a sum with a product and the append of rotated keys; 2, a product's gated activation too, in a step of one row";
    Overlap "sequencer.overlap" "share" Real More (0.0, 1.0) = 1.0,
        "share of the shorter of a command's arithmetic and transfer that hides behind the longer; the rest is added";
    Prefetch "sequencer.prefetch" "0 or 1" Flag More (0.0, 1.0) = 0.0, "the next matrix may stream while commands run that leave the memory idle";

    LinkGbps "link.gbps" "GB/s" Real More (1e-6, 1e6) = 25.0, "bandwidth of the link to the next device, one way";
    LinkLatencyUs "link.latency_us" "us" Real Less (0.0, 1e9) = 10.0, "from sending a message to its arrival";
    FramingBytes "link.framing_bytes" "bytes" Count Less (0.0, 1e9) = 64.0, "bytes of a message beside its payload";
    ReduceUs "link.reduce_us" "us" Real Less (0.0, 1e9) = 10.0, "time of a sum over all devices of a tensor-parallel group, beside its bytes";
    Tensor "parallel.tensor" "devices" Count Neither (1.0, 4096.0) = 1.0, "equal devices that share every matrix and every head";
    Stages "parallel.stages" "stages" Count Neither (1.0, 255.0) = 1.0, "pipeline stages, each a device or a tensor-parallel group";

    HostStepUs "host.step_us" "us" Real Less (0.0, 1e9) = 0.0, "time of the host in a step, the device idle";
    HostSampleUs "host.sample_us" "us" Real Less (0.0, 1e9) = 0.0, "time of the host to pick a token, for each row with logits";

    MacPj "energy.mac_pj" "pJ" Real Neither (0.0, 1e6) = 0.5, "energy of a multiply-accumulate of `array.bits`";
    MemoryPj "energy.memory_pj_per_byte" "pJ/byte" Real Neither (0.0, 1e6) = 40.0, "energy of a byte from memory";
    SramPj "energy.sram_pj_per_byte" "pJ/byte" Real Neither (0.0, 1e6) = 1.0, "energy of a byte from the memory on the chip";
    LinkPj "energy.link_pj_per_byte" "pJ/byte" Real Neither (0.0, 1e6) = 80.0, "energy of a byte over the link";
    IdleW "energy.idle_w" "W" Real Neither (0.0, 1e6) = 5.0, "power of a device that waits: leakage, clocks, fans, host";

    AreaBase "area.base_mm2" "mm2" Real Neither (0.0, 1e6) = 0.0, "area beside lanes and memory; 0 with the others: not known";
    AreaLane "area.klane_mm2" "mm2 per 1,000 lanes" Real Neither (0.0, 1e6) = 0.0, "area of the array's lanes";
    AreaSram "area.sram_mm2_per_mib" "mm2/MiB" Real Neither (0.0, 1e6) = 0.0, "area of the memory on the chip";
}
