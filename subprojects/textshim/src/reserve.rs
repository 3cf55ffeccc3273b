//! Memory for when the system gives none: Rust code cannot go on without the memory that it asks for, the process
//! would be aborted. A range of addresses is set aside at start, so that an allocation which the system refuses
//! (RLIMIT_AS, a full table of mappings) is served from there instead. Nothing of it is touched before.
//!
//! What is live at a time is bounded by the accounts of templates, contexts and grammars, as always. Blocks are
//! powers of two and are used again by later blocks of the same size, so that what is touched stays within twice
//! what is live. When the range is used up too the process is aborted; its size is chosen so that this cannot be.

use std::alloc::Layout;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering::*};

const LEAST_SHIFT: u32 = 5; // 32 bytes
const CLASSES: usize = 40;
const ALIGN: usize = 4096;

struct Reserve {
    base: AtomicPtr<u8>,
    size: AtomicUsize,
    // under lock
    locked: AtomicBool,
    used: AtomicUsize,
    free: [AtomicPtr<u8>; CLASSES], // a free block begins with the address of the next one
}

static RESERVE: Reserve = Reserve {
    base: AtomicPtr::new(null_mut()),
    size: AtomicUsize::new(0),
    locked: AtomicBool::new(false),
    used: AtomicUsize::new(0),
    free: [const { AtomicPtr::new(null_mut()) }; CLASSES],
};

/// The range that is set aside, once; false when there is one already. It begins at a page.
pub fn set_aside(base: *mut u8, size: usize) -> bool {
    RESERVE.size.store(size, Release);
    RESERVE.base.compare_exchange(null_mut(), base, AcqRel, Acquire).is_ok()
}

/// Was the block given by `alloc`?
pub fn holds(block: *mut u8) -> bool {
    let base = RESERVE.base.load(Acquire) as usize;
    base != 0 && (block as usize).wrapping_sub(base) < RESERVE.size.load(Acquire)
}

fn class_of(layout: Layout) -> usize {
    let size = layout.size().max(layout.align()).max(1 << LEAST_SHIFT).next_power_of_two();
    (size.trailing_zeros() - LEAST_SHIFT) as usize
}

fn locked<T>(body: impl FnOnce() -> T) -> T {
    while RESERVE.locked.swap(true, Acquire) {
        std::thread::yield_now();
    }
    let result = body();
    RESERVE.locked.store(false, Release);
    result
}

/// A block, or null when nothing was set aside or all of it is used.
pub fn alloc(layout: Layout) -> *mut u8 {
    let class = class_of(layout);
    let base = RESERVE.base.load(Acquire);
    if base.is_null() || class >= CLASSES || layout.align() > ALIGN {
        return null_mut();
    }
    locked(|| {
        let first = RESERVE.free[class].load(Relaxed);
        if !first.is_null() {
            // SAFETY: free blocks begin with the next one's address; dealloc wrote it.
            RESERVE.free[class].store(unsafe { *first.cast::<*mut u8>() }, Relaxed);
            return first;
        }
        let size = 1usize << (class as u32 + LEAST_SHIFT);
        // A block's size is a multiple of its alignment up to a page, and so is its place.
        let start = (RESERVE.used.load(Relaxed)).next_multiple_of(size.min(ALIGN));
        match start.checked_add(size) {
            Some(end) if end <= RESERVE.size.load(Relaxed) => {
                RESERVE.used.store(end, Relaxed);
                // SAFETY: within the range.
                unsafe { base.add(start) }
            }
            _ => null_mut(),
        }
    })
}

/// # Safety
/// `alloc` gave the block for this layout.
pub unsafe fn dealloc(block: *mut u8, layout: Layout) {
    let class = class_of(layout);
    locked(|| {
        *block.cast::<*mut u8>() = RESERVE.free[class].load(Relaxed);
        RESERVE.free[class].store(block, Relaxed);
    });
}
