//! The table of micro-programs, one or more for each command of the vector unit.

use super::micro::{Access, Micro, OperandInfo, Place, Start, Step, passes};
use crate::math::Function;

/// One step from its text.
macro_rules! step {
    (load $v:ident $o:ident $p:ident $x:ident) => { Step::Load(place!($o $x First 1)) };
    (load_even $v:ident $o:ident $p:ident $x:ident) => { Step::Load(place!($o $x First 2)) };
    (load_odd $v:ident $o:ident $p:ident $x:ident) => { Step::Load(place!($o $x Odd 2)) };
    (load_second $v:ident $o:ident $p:ident $x:ident) => { Step::Load(place!($o $x Second 1)) };
    (store $v:ident $o:ident $p:ident $x:ident $a:ident) => { Step::Store(place!($o $x First 1), $v::$a as u8) };
    (store_even $v:ident $o:ident $p:ident $x:ident $a:ident) => { Step::Store(place!($o $x First 2), $v::$a as u8) };
    (store_odd $v:ident $o:ident $p:ident $x:ident $a:ident) => { Step::Store(place!($o $x Odd 2), $v::$a as u8) };
    (store_second $v:ident $o:ident $p:ident $x:ident $a:ident) => {
        Step::Store(place!($o $x Second 1), $v::$a as u8)
    };
    (load_head $v:ident $o:ident $p:ident $x:ident) => { Step::LoadHead($o::$x as u8) };
    (store_head $v:ident $o:ident $p:ident $x:ident $a:ident) => { Step::StoreHead($o::$x as u8, $v::$a as u8) };
    (number $v:ident $o:ident $p:ident $n:literal) => { Step::Number($n) };
    (param $v:ident $o:ident $p:ident $x:ident) => { Step::Param($p::$x as u8) };
    (add $v:ident $o:ident $p:ident $a:ident $b:ident) => { Step::Add($v::$a as u8, $v::$b as u8) };
    (sub $v:ident $o:ident $p:ident $a:ident $b:ident) => { Step::Sub($v::$a as u8, $v::$b as u8) };
    (mul $v:ident $o:ident $p:ident $a:ident $b:ident) => { Step::Mul($v::$a as u8, $v::$b as u8) };
    (map $v:ident $o:ident $p:ident $f:ident $a:ident) => { Step::Map(Function::$f, $v::$a as u8) };
    (act $v:ident $o:ident $p:ident $a:ident) => { Step::Act($v::$a as u8) };
    (sum $v:ident $o:ident $p:ident $a:ident) => { Step::Sum($v::$a as u8) };
    (max $v:ident $o:ident $p:ident $a:ident) => { Step::Max($v::$a as u8) };
    (spread $v:ident $o:ident $p:ident $a:ident) => { Step::Spread($v::$a as u8) };
}

macro_rules! place {
    ($o:ident $x:ident $start:ident $step:literal) => {
        Place { operand: $o::$x as u8, start: Start::$start, step: $step }
    };
}

/// Writes a micro-program with names for its values, operands and parameters; an unknown name does not compile.
macro_rules! micro {
    ($($id:ident $name:literal $doc:literal ($($operand:ident $access:ident),*) [$($param:ident),*] {
        $($value:ident = $op:ident $($arg:ident)* $($number:literal)?;)*
    })+) => {
        $(
            #[doc = $doc]
            pub const $id: Micro = {
                #[allow(non_camel_case_types, dead_code, reason = "names of the table, used as numbers")]
                #[derive(Clone, Copy)]
                enum Value { $($value,)* }
                #[allow(non_camel_case_types, dead_code, reason = "names of the table, used as numbers")]
                #[derive(Clone, Copy)]
                enum Operand { $($operand,)* }
                #[allow(non_camel_case_types, dead_code, reason = "names of the table, used as numbers")]
                #[derive(Clone, Copy)]
                enum Param { $($param,)* }
                const STEPS: &[Step] = &[$(step!($op Value Operand Param $($arg)* $($number)?),)*];
                Micro {
                    name: $name,
                    doc: $doc,
                    operands: &[$(OperandInfo { name: stringify!($operand), access: Access::$access },)*],
                    params: &[$(stringify!($param),)*],
                    values: &[$(stringify!($value),)*],
                    steps: STEPS,
                    passes: passes(STEPS),
                }
            };
        )+

        /// Every micro-program.
        pub const MICRO: &[&Micro] = &[$(&$id,)+];
    };
}

micro! {
    EMBED "embed" "out = scale * row" (row In, out Out) [scale] {
        s = param scale;
        a = load row;
        b = spread s;
        y = mul a b;
        o = store out y;
    }
    EMBED_POSITIONS "embed.positions" "out = scale * row + position" (row In, position In, out Out) [scale] {
        s = param scale;
        a = load row;
        b = spread s;
        t = mul a b;
        p = load position;
        y = add t p;
        o = store out y;
    }
    NORM_RMS "norm.rms" "out = x * rsqrt(mean(x^2) + eps) * weight" (x In, weight In, out Out) [inv_width, eps] {
        a = load x;
        square = mul a a;
        total = sum square;
        n = param inv_width;
        mean = mul total n;
        e = param eps;
        under = add mean e;
        root = map Rsqrt under;
        b = load x;
        r = spread root;
        t = mul b r;
        w = load weight;
        y = mul t w;
        o = store out y;
    }
    NORM_LN "norm.ln" "out = (x - mean) * rsqrt(mean((x - mean)^2) + eps) * weight"
        (x In, weight In, out Out) [inv_width, eps] {
        a = load x;
        total = sum a;
        n = param inv_width;
        mean = mul total n;
        b = load x;
        m = spread mean;
        d = sub b m;
        square = mul d d;
        squares = sum square;
        var = mul squares n;
        e = param eps;
        under = add var e;
        root = map Rsqrt under;
        c = load x;
        mm = spread mean;
        dd = sub c mm;
        r = spread root;
        t = mul dd r;
        w = load weight;
        y = mul t w;
        o = store out y;
    }
    NORM_LN_BIAS "norm.ln.bias" "out = (x - mean) * rsqrt(mean((x - mean)^2) + eps) * weight + bias"
        (x In, weight In, bias In, out Out) [inv_width, eps] {
        a = load x;
        total = sum a;
        n = param inv_width;
        mean = mul total n;
        b = load x;
        m = spread mean;
        d = sub b m;
        square = mul d d;
        squares = sum square;
        var = mul squares n;
        e = param eps;
        under = add var e;
        root = map Rsqrt under;
        c = load x;
        mm = spread mean;
        dd = sub c mm;
        r = spread root;
        t = mul dd r;
        w = load weight;
        z = mul t w;
        k = load bias;
        y = add z k;
        o = store out y;
    }
    HEAD_NORM "head_norm" "x = x * rsqrt(mean(x^2) + eps) * weight, head by head, in place"
        (x Update, weight In) [inv_width, eps] {
        a = load x;
        square = mul a a;
        total = sum square;
        n = param inv_width;
        mean = mul total n;
        e = param eps;
        under = add mean e;
        root = map Rsqrt under;
        b = load x;
        r = spread root;
        t = mul b r;
        w = load weight;
        y = mul t w;
        o = store x y;
    }
    ROPE_HALF_QUERY "rope.half.query" "rotate the pairs (i, width + i), then scale; width is half the rotated dimensions"
        (x Update, cos In, sin In) [scale] {
        s = param scale;
        a = load x;
        b = load_second x;
        c = load cos;
        d = load sin;
        ac = mul a c;
        bd = mul b d;
        first = sub ac bd;
        bc = mul b c;
        ad = mul a d;
        second = add bc ad;
        f = spread s;
        y = mul first f;
        z = mul second f;
        o = store x y;
        p = store_second x z;
    }
    ROPE_HALF_KEY "rope.half.key" "rotate the pairs (i, width + i); width is half the rotated dimensions"
        (x Update, cos In, sin In) [] {
        a = load x;
        b = load_second x;
        c = load cos;
        d = load sin;
        ac = mul a c;
        bd = mul b d;
        first = sub ac bd;
        bc = mul b c;
        ad = mul a d;
        second = add bc ad;
        o = store x first;
        p = store_second x second;
    }
    ROPE_PAIRS_QUERY "rope.pairs.query" "rotate the pairs (2i, 2i + 1), then scale; width is half the rotated dimensions"
        (x Update, cos In, sin In) [scale] {
        s = param scale;
        a = load_even x;
        b = load_odd x;
        c = load cos;
        d = load sin;
        ac = mul a c;
        bd = mul b d;
        first = sub ac bd;
        bc = mul b c;
        ad = mul a d;
        second = add bc ad;
        f = spread s;
        y = mul first f;
        z = mul second f;
        o = store_even x y;
        p = store_odd x z;
    }
    ROPE_PAIRS_KEY "rope.pairs.key" "rotate the pairs (2i, 2i + 1); width is half the rotated dimensions"
        (x Update, cos In, sin In) [] {
        a = load_even x;
        b = load_odd x;
        c = load cos;
        d = load sin;
        ac = mul a c;
        bd = mul b d;
        first = sub ac bd;
        bc = mul b c;
        ad = mul a d;
        second = add bc ad;
        o = store_even x first;
        p = store_odd x second;
    }
    SCALE "scale" "x = scale * x, in place; also the query's dimensions past the rotated ones" (x Update) [scale] {
        s = param scale;
        a = load x;
        b = spread s;
        y = mul a b;
        o = store x y;
    }
    ATTEND_SOFTMAX "attend.softmax" "scores = exp(scores - max), in place, and their sum; the first lane is the first visible position mod 32"
        (scores Update, sum Out) [] {
        a = load scores;
        top = max a;
        b = load scores;
        m = spread top;
        d = sub b m;
        e = map Exp d;
        o = store scores e;
        total = sum e;
        p = store_head sum total;
    }
    ATTEND_FINISH "attend.finish" "x = x * recip(sum), head by head, in place" (x Update, sum In) [] {
        s = load_head sum;
        r = map Recip s;
        a = load x;
        b = spread r;
        y = mul a b;
        o = store x y;
    }
    GATE "gate" "out = x * sigmoid(gate), one gate element for each element" (x In, gate In, out Out) [] {
        a = load x;
        g = load gate;
        s = map Sigmoid g;
        y = mul a s;
        o = store out y;
    }
    GATE_GROUP "gate.group" "out = x * sigmoid(gate), one gate element for each head" (x In, gate In, out Out) [] {
        g = load_head gate;
        s = map Sigmoid g;
        a = load x;
        b = spread s;
        y = mul a b;
        o = store out y;
    }
    L2_NORM "l2_norm" "x = x * rsqrt(sum(x^2) + eps), head by head, in place" (x Update) [eps] {
        a = load x;
        square = mul a a;
        total = sum square;
        e = param eps;
        under = add total e;
        root = map Rsqrt under;
        b = load x;
        r = spread root;
        y = mul b r;
        o = store x y;
    }
    DELTA_GATE "delta_gate" "decay = exp(-exp(a_log) * softplus(a + dt_bias)); beta = sigmoid(b)"
        (b In, a In, a_log In, dt_bias In, decay Out, beta Out) [] {
        zero = number 0.0;
        x = load a;
        t = load dt_bias;
        shifted = add x t;
        rate = map Softplus shifted;
        l = load a_log;
        speed = map Exp l;
        fall = mul speed rate;
        z = spread zero;
        negative = sub z fall;
        g = map Exp negative;
        o = store decay g;
        y = load b;
        s = map Sigmoid y;
        p = store beta s;
    }
    GATED_NORM "gated_norm" "out = x * rsqrt(mean(x^2) + eps) * weight * act(gate), head by head"
        (x In, gate In, weight In, out Out) [inv_width, eps] {
        a = load x;
        square = mul a a;
        total = sum square;
        n = param inv_width;
        mean = mul total n;
        e = param eps;
        under = add mean e;
        root = map Rsqrt under;
        b = load x;
        r = spread root;
        t = mul b r;
        w = load weight;
        normed = mul t w;
        g = load gate;
        s = act g;
        y = mul normed s;
        o = store out y;
    }
    ACT "act" "out = act(x)" (x In, out Out) [] {
        a = load x;
        y = act a;
        o = store out y;
    }
    ACT_GATED "act.gated" "out = act(gate) * up from gate | up; width is that of each" (x In, out Out) [] {
        g = load x;
        s = act g;
        u = load_second x;
        y = mul s u;
        o = store out y;
    }
    ADD "add" "out = x + scale * y" (x In, y In, out Out) [scale] {
        s = param scale;
        a = load x;
        b = load y;
        f = spread s;
        t = mul b f;
        z = add a t;
        o = store out z;
    }
    SOFT_CAP "soft_cap" "x = cap * tanh(x * recip(cap)), in place" (x Update) [cap] {
        c = param cap;
        inverse = map Recip c;
        a = load x;
        i = spread inverse;
        t = mul a i;
        h = map Tanh t;
        f = spread c;
        y = mul h f;
        o = store x y;
    }
    TOP_K_SOFTMAX "top_k.softmax" "out = softmax(logits)" (logits In, out Out) [] {
        a = load logits;
        top = max a;
        b = load logits;
        m = spread top;
        d = sub b m;
        e = map Exp d;
        o = store out e;
        total = sum e;
        inverse = map Recip total;
        c = load out;
        r = spread inverse;
        y = mul c r;
        p = store out y;
    }
    TOP_K_RENORMALISE "top_k.renormalise" "weights = weights * recip(sum(weights)), in place" (weights Update) [] {
        a = load weights;
        total = sum a;
        inverse = map Recip total;
        b = load weights;
        r = spread inverse;
        y = mul b r;
        o = store weights y;
    }
}
