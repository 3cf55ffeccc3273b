//! Counts the bytes that Rust holds: the system's allocator with two ledgers beside it. One is of contexts, the
//! values that a request's JSON becomes; what they take follows from the request, and the caller counts it. The
//! other is of templates, compiled and running: what bounds it is their fuel, and the ledger shows that it does.
//!
//! Nothing is refused here: Rust code cannot go on without the memory it asks for, the process would be aborted.
//! What the system refuses comes from a reserve (`reserve`). And what may be asked for is bounded before: contexts
//! are charged by their values' number and refused when there is no room, templates get as much fuel as their
//! memory can stand, and what is large is weighed before it is made (`python::weigh`).

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use minijinja::Value;

use crate::reserve;

pub struct Ledger {
    used: AtomicUsize,
    peak: AtomicUsize,
}

pub static TEMPLATES: Ledger = Ledger::new();
pub static CONTEXTS: Ledger = Ledger::new();
/// What grammars hold beside their own ledgers: the objects' frames.
pub static GRAMMARS: Ledger = Ledger::new();

impl Ledger {
    pub const fn new() -> Ledger {
        Ledger { used: AtomicUsize::new(0), peak: AtomicUsize::new(0) }
    }

    fn take(&self, bytes: usize) {
        self.peak.fetch_max(self.used.fetch_add(bytes, Relaxed) + bytes, Relaxed);
    }

    fn give(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Relaxed);
    }

    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    pub fn peak(&self) -> usize {
        self.peak.load(Relaxed)
    }

    pub fn reset_peak(&self) {
        self.peak.store(self.used(), Relaxed);
    }
}

thread_local! {
    // Without a destructor and without memory of its own, so that the allocator may read it at any time.
    static CURRENT: Cell<*const Ledger> = const { Cell::new(std::ptr::null()) };
}

fn ledger() -> &'static Ledger {
    // SAFETY: `charge` sets it to a ledger that it borrows for as long as it is set.
    unsafe { CURRENT.get().as_ref() }.unwrap_or(&TEMPLATES)
}

/// Runs `body` with all that it allocates and frees entered in `ledger`, also when it panics.
pub fn charge<T>(ledger: &Ledger, body: impl FnOnce() -> T) -> T {
    struct Restore(*const Ledger);
    impl Drop for Restore {
        fn drop(&mut self) {
            CURRENT.set(self.0);
        }
    }
    let _restore = Restore(CURRENT.replace(ledger));
    body()
}

/// A context and all that it holds. The root is kept until the end, so that its values are given back here and
/// not where a template happens to let the last one go.
pub struct Context(Option<Value>);

impl Context {
    /// None when it is no JSON.
    pub fn read(json: &[u8]) -> Option<Context> {
        charge(&CONTEXTS, || serde_json::from_slice(json).ok()).map(|value| Context(Some(value)))
    }

    /// With other roles in its messages, where `other` has one.
    pub fn with_roles(self, other: impl Fn(&str) -> Option<String>) -> Context {
        charge(&CONTEXTS, || Context(self.0.as_ref().map(|root| replace_roles(root, other))))
    }

    pub fn value(&self) -> Value {
        self.0.clone().unwrap_or_default()
    }
}

fn replace_roles(root: &Value, other: impl Fn(&str) -> Option<String>) -> Value {
    let role_of = |message: &Value| {
        let role = message.get_attr("role").ok()?;
        other(role.as_str()?)
    };
    let messages = root.get_attr("messages").unwrap_or_default();
    let Ok(list) = messages.try_iter() else {
        return root.clone();
    };
    let list: Vec<Value> = list.collect();
    if list.iter().all(|message| role_of(message).is_none()) {
        return root.clone();
    }
    let with = |map: &Value, name: &str, value: Value| -> Value {
        let keys = map.try_iter().into_iter().flatten();
        let pairs = keys.map(|key| {
            let item = map.get_item(&key).unwrap_or_default();
            let item = if key.as_str() == Some(name) { value.clone() } else { item };
            (key, item)
        });
        Value::from_pairs(pairs)
    };
    let list: Vec<Value> = list
        .iter()
        .map(|message| match role_of(message) {
            Some(role) => with(message, "role", Value::from(role)),
            None => message.clone(),
        })
        .collect();
    with(root, "messages", Value::from(list))
}

impl Drop for Context {
    fn drop(&mut self) {
        charge(&CONTEXTS, || self.0 = None);
    }
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The system's, or the reserve's when the system has none.
unsafe fn take_block(layout: Layout, zeroed: bool) -> *mut u8 {
    let block = if zeroed { System.alloc_zeroed(layout) } else { System.alloc(layout) };
    if !block.is_null() {
        return block;
    }
    let block = reserve::alloc(layout);
    if zeroed && !block.is_null() {
        block.write_bytes(0, layout.size()); // it may have been used before
    }
    block
}

unsafe fn give_block(block: *mut u8, layout: Layout) {
    if reserve::holds(block) {
        reserve::dealloc(block, layout);
    } else {
        System.dealloc(block, layout);
    }
}

// SAFETY: every block is the system allocator's or the reserve's, and goes back to where it came from; counting
// neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let block = take_block(layout, false);
        if !block.is_null() {
            ledger().take(layout.size());
        }
        block
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let block = take_block(layout, true);
        if !block.is_null() {
            ledger().take(layout.size());
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        give_block(block, layout);
        ledger().give(layout.size());
    }

    // Counted as if both blocks were there for a moment, which for small ones they are.
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let in_reserve = reserve::holds(block);
        let mut moved = if in_reserve { null_mut() } else { System.realloc(block, layout, size) };
        if moved.is_null() {
            moved = take_block(Layout::from_size_align_unchecked(size, layout.align()), false);
            if moved.is_null() {
                return moved;
            }
            moved.copy_from_nonoverlapping(block, layout.size().min(size));
            give_block(block, layout);
        }
        ledger().take(size);
        ledger().give(layout.size());
        moved
    }
}
