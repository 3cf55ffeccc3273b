//! The C ABI of textshim.h. Every entry catches panics; no panic and no exception crosses into C.

mod gbnf;
mod grammar;
mod grammar_abi;
mod mark;
mod memory;
mod python;
mod reserve;
mod rewrite;
mod schema;
mod strings;
mod template;

use std::ffi::{c_char, c_int, c_void};
use std::panic::{catch_unwind, set_hook, AssertUnwindSafe};
use std::sync::Once;

use memory::{CONTEXTS, TEMPLATES};
use template::{ChatTemplate, Clock, Failure};

const OK: c_int = 0;
const PANIC: c_int = 4;

type Sink = extern "C" fn(*mut c_void, *const c_char, usize);

/// The bytes of a C text. A null pointer counts as empty.
///
/// # Safety
/// `data` points to `length` readable bytes that outlive the use.
pub(crate) unsafe fn bytes_of<'a>(data: *const c_char, length: usize) -> &'a [u8] {
    if data.is_null() || length == 0 {
        &[]
    } else {
        std::slice::from_raw_parts(data.cast(), length)
    }
}

/// Copies `text` into the caller's buffer, cut at a character's edge and terminated.
///
/// # Safety
/// `out` points to `capacity` writable bytes.
pub(crate) unsafe fn write_message(text: &str, out: *mut c_char, capacity: usize) {
    if out.is_null() || capacity == 0 {
        return;
    }
    let mut length = text.len().min(capacity - 1);
    while !text.is_char_boundary(length) {
        length -= 1;
    }
    std::ptr::copy_nonoverlapping(text.as_ptr(), out.cast(), length);
    *out.add(length) = 0;
}

/// A panic's text may hold a user's, so it is not printed; the caller logs what an entry returns.
pub(crate) fn silence_panics() {
    static SILENCE: Once = Once::new();
    SILENCE.call_once(|| set_hook(Box::new(|_| {})));
}

/// Runs an entry's body: its failure, or a panic, becomes a status and a message.
///
/// # Safety
/// As `write_message`.
unsafe fn guard(
    message: *mut c_char,
    capacity: usize,
    body: impl FnOnce() -> Result<(), Failure>,
) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => OK,
        Ok(Err(failure)) => {
            write_message(&failure.message, message, capacity);
            failure.kind as c_int
        }
        Err(_) => {
            write_message("the template engine failed", message, capacity);
            PANIC
        }
    }
}

/// # Safety
/// See textshim.h.
#[no_mangle]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn textshim_template_new(
    source: *const c_char,
    source_length: usize,
    bos: *const c_char,
    bos_length: usize,
    eos: *const c_char,
    eos_length: usize,
    clock: Clock,
    out: *mut *mut ChatTemplate,
    message: *mut c_char,
    message_capacity: usize,
) -> c_int {
    *out = std::ptr::null_mut();
    silence_panics();
    guard(message, message_capacity, || {
        let template = ChatTemplate::compile(
            bytes_of(source, source_length),
            bytes_of(bos, bos_length),
            bytes_of(eos, eos_length),
            clock,
        )?;
        *out = Box::into_raw(Box::new(template));
        Ok(())
    })
}

/// # Safety
/// See textshim.h.
#[no_mangle]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn textshim_template_render(
    template: *const ChatTemplate,
    context: *const c_char,
    context_length: usize,
    output_limit: usize,
    fuel: u64,
    sink: Sink,
    arg: *mut c_void,
    message: *mut c_char,
    message_capacity: usize,
) -> c_int {
    guard(message, message_capacity, || {
        let emit = |bytes: &[u8]| sink(arg, bytes.as_ptr().cast(), bytes.len());
        (*template).render(bytes_of(context, context_length), output_limit, fuel, emit)
    })
}

/// struct textshim_text.
#[repr(C)]
pub struct Text {
    text: *const c_char,
    length: usize,
}

/// # Safety
/// See textshim.h.
#[no_mangle]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn textshim_template_mark(
    template: *mut ChatTemplate,
    tokens: *const Text,
    token_count: usize,
    bos: *const c_char,
    bos_length: usize,
    eos: *const c_char,
    eos_length: usize,
    ways: *mut u32,
    message: *mut c_char,
    message_capacity: usize,
) -> c_int {
    *ways = 0;
    guard(message, message_capacity, || {
        let tokens = if token_count == 0 {
            &[]
        } else {
            std::slice::from_raw_parts(tokens, token_count)
        };
        // A token that is no text cannot be in a template.
        let texts: Vec<&str> = tokens
            .iter()
            .filter_map(|token| std::str::from_utf8(bytes_of(token.text, token.length)).ok())
            .collect();
        let (bos, eos) = (bytes_of(bos, bos_length), bytes_of(eos, eos_length));
        *ways = (*template).mark(&texts, bos, eos)?;
        Ok(())
    })
}

/// # Safety
/// See textshim.h.
#[no_mangle]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn textshim_template_trace(
    template: *const ChatTemplate,
    way: u32,
    context: *const c_char,
    context_length: usize,
    fuel: u64,
    plain: *const c_char,
    plain_length: usize,
    own: *mut u8,
    same: *mut bool,
    message: *mut c_char,
    message_capacity: usize,
) -> c_int {
    *same = false;
    guard(message, message_capacity, || {
        let own: &mut [u8] = if plain_length == 0 {
            &mut []
        } else {
            std::slice::from_raw_parts_mut(own, plain_length.div_ceil(8))
        };
        let Some(way) = mark::WAYS.get(way as usize) else {
            return Ok(());
        };
        let plain = bytes_of(plain, plain_length);
        let context = bytes_of(context, context_length);
        *same = (*template).trace(*way, context, fuel, plain, own)?;
        Ok(())
    })
}

/// # Safety
/// See textshim.h.
#[no_mangle]
pub unsafe extern "C" fn textshim_template_free(template: *mut ChatTemplate) {
    if !template.is_null() {
        let _ = catch_unwind(AssertUnwindSafe(|| drop(Box::from_raw(template))));
    }
}

/// # Safety
/// See textshim.h.
#[no_mangle]
pub unsafe extern "C" fn textshim_reserve(base: *mut c_void, bytes: usize) {
    reserve::set_aside(base.cast(), bytes);
}

/// struct textshim_memory.
#[repr(C)]
pub struct Memory {
    templates_used: usize,
    templates_peak: usize,
    contexts_used: usize,
    contexts_peak: usize,
}

/// # Safety
/// See textshim.h.
#[no_mangle]
pub unsafe extern "C" fn textshim_memory_read(out: *mut Memory) {
    *out = Memory {
        templates_used: TEMPLATES.used(),
        templates_peak: TEMPLATES.peak(),
        contexts_used: CONTEXTS.used(),
        contexts_peak: CONTEXTS.peak(),
    };
}

/// See textshim.h.
#[no_mangle]
pub extern "C" fn textshim_memory_reset_peaks() {
    TEMPLATES.reset_peak();
    CONTEXTS.reset_peak();
}
