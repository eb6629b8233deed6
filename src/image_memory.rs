//! Memory for weight images: anonymous, in large pages where the system has them.
//!
//! A decode step reads the whole image once. In pages of 4 KiB that is a page walk every 64 cache lines, and a
//! prefetcher that stops at each; in pages of 2 MiB neither. The pages of a mapped file are small, so an image that is
//! mapped is copied, unless memory is too short to hold it twice for that moment.

use memmap2::{Mmap, MmapMut};
use std::io;

/// Images below this stay where they are: they are read from the processor's cache.
const LEAST: usize = 8 << 20;
/// Bytes that one thread copies at a time.
const PIECE: usize = 8 << 20;

/// The bytes of an image.
#[derive(Debug)]
pub enum ImageBytes {
    /// A mapped file.
    Mapped(Mmap),
    /// Memory of this process.
    Held(MmapMut),
}

impl AsRef<[u8]> for ImageBytes {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Held(memory) => memory,
        }
    }
}

/// `len` zeroed bytes, in large pages where the system gives them.
///
/// # Errors
/// The system does not give that much.
pub fn zeroed(len: usize) -> io::Result<MmapMut> {
    let memory = MmapMut::map_anon(len.max(1))?;
    #[cfg(target_os = "linux")]
    // A refusal leaves small pages, which hold the same bytes.
    let _ = memory.advise(memmap2::Advice::HugePage);
    Ok(memory)
}

/// The image of a mapped file where a step reads it fastest: a copy in large pages, or the map itself where the system
/// has none to offer, where the image is small, or where memory is short.
#[must_use]
pub fn hold(map: Mmap, threads: usize) -> ImageBytes {
    if map.len() < LEAST || !large_pages() || available().is_none_or(|free| free < map.len() + map.len() / 4) {
        return ImageBytes::Mapped(map);
    }
    let Ok(mut memory) = zeroed(map.len()) else { return ImageBytes::Mapped(map) };
    {
        let pieces = std::sync::Mutex::new(memory.chunks_mut(PIECE).zip(map.chunks(PIECE)));
        std::thread::scope(|scope| {
            for _ in 0..threads.clamp(1, 16) {
                scope.spawn(|| {
                    loop {
                        let next = pieces.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
                        let Some((to, from)) = next else { return };
                        to.copy_from_slice(from);
                    }
                });
            }
        });
    }
    ImageBytes::Held(memory)
}

/// The system gives large pages to memory that asks for them.
fn large_pages() -> bool {
    cfg!(target_os = "linux")
        && std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled")
            .is_ok_and(|modes| !modes.contains("[never]"))
}

/// Bytes of memory that can be had without pushing anything out; `None` where the system does not say.
#[must_use]
pub fn available() -> Option<usize> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn mapped(bytes: &[u8]) -> Mmap {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        // SAFETY: nobody else has the file.
        unsafe { Mmap::map(&file) }.unwrap()
    }

    #[test]
    fn what_is_held_is_what_was_mapped() {
        // A piece and a rest, and one byte under the least.
        for len in [LEAST + PIECE / 3, LEAST - 1] {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 31 % 251) as u8).collect();
            let held = hold(mapped(&bytes), 3);
            assert!(held.as_ref() == bytes);
            assert!(len >= LEAST || matches!(held, ImageBytes::Mapped(_)));
        }
    }

    #[test]
    fn memory_is_zero_and_of_the_length_asked_for() {
        let memory = zeroed(3 << 20).unwrap();
        assert!(memory.len() == 3 << 20 && memory.iter().all(|b| *b == 0));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn linux_tells_how_much_memory_is_left() {
        assert!(available().unwrap() > 1 << 20);
    }
}
