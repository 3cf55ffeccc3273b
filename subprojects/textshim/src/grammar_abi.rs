//! The C ABI of textgrammar.h. Every entry catches panics.

use std::ffi::{c_char, c_int, c_void};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::Arc;

use crate::grammar::{Failure, Grammar, Kind, Limits, Matcher, Tokenize, Vocabulary};
use crate::memory::{charge, GRAMMARS};
use crate::{bytes_of, silence_panics, write_message};

const OK: c_int = 0;
const INVALID: c_int = 1;
const LIMIT: c_int = 2;
const PANIC: c_int = 3;

/// struct textgrammar_error.
#[repr(C)]
pub struct Report {
    path: [c_char; 256],
    message: [c_char; 512],
}

unsafe fn report(out: *mut Report, path: &str, message: &str) {
    if !out.is_null() {
        write_message(path, (*out).path.as_mut_ptr(), (*out).path.len());
        write_message(message, (*out).message.as_mut_ptr(), (*out).message.len());
    }
}

/// Runs an entry's body; failures and panics become a status and a report.
unsafe fn guard(error: *mut Report, body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    charge(&GRAMMARS, || match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => OK,
        Ok(Err(Failure::Invalid { path, reason })) => {
            report(error, &path, &reason);
            INVALID
        }
        Ok(Err(Failure::Limit(reason))) => {
            report(error, "", &reason);
            LIMIT
        }
        Err(_) => {
            report(error, "", "the grammar library failed");
            PANIC
        }
    })
}

/// Drops what an entry made.
fn free(body: impl FnOnce()) {
    charge(&GRAMMARS, || {
        let _ = catch_unwind(AssertUnwindSafe(body));
    });
}

type TokenAt = extern "C" fn(*mut c_void, u32, *mut *const c_char, *mut usize) -> c_int;

/// # Safety
/// See textgrammar.h.
#[no_mangle]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn textgrammar_vocabulary_new(
    count: u32,
    token_at: TokenAt,
    tokenize: Tokenize,
    arg: *mut c_void,
    ends: *const u32,
    end_count: usize,
    limits: *const Limits,
    out: *mut *mut Vocabulary,
    error: *mut Report,
) -> c_int {
    *out = std::ptr::null_mut();
    silence_panics();
    guard(error, || {
        let tokens = |id: u32| {
            let (mut bytes, mut length) = (std::ptr::null(), 0);
            let is_control = token_at(arg, id, &mut bytes, &mut length) != 0;
            let text = bytes_of(bytes, length);
            // A control token is no text: 0xFF occurs in none.
            if is_control { [&[0xff], text].concat() } else { text.to_vec() }
        };
        let ends = if end_count == 0 { &[] } else { std::slice::from_raw_parts(ends, end_count) };
        let vocabulary = Vocabulary::new(&tokens, count, ends, tokenize, arg, *limits)?;
        *out = Box::into_raw(Box::new(vocabulary));
        Ok(())
    })
}

/// # Safety
/// See textgrammar.h.
#[no_mangle]
pub unsafe extern "C" fn textgrammar_vocabulary_bytes(vocabulary: *const Vocabulary) -> usize {
    (*vocabulary).used()
}

/// # Safety
/// See textgrammar.h.
#[no_mangle]
pub unsafe extern "C" fn textgrammar_vocabulary_free(vocabulary: *mut Vocabulary) {
    if !vocabulary.is_null() {
        free(|| drop(Box::from_raw(vocabulary)));
    }
}

/// # Safety
/// See textgrammar.h.
#[no_mangle]
pub unsafe extern "C" fn textgrammar_compile(
    vocabulary: *const Vocabulary,
    kind: c_int,
    source: *const c_char,
    length: usize,
    out: *mut *const Grammar,
    error: *mut Report,
) -> c_int {
    *out = std::ptr::null();
    guard(error, || {
        let invalid = |reason: &str| Failure::Invalid { path: String::new(), reason: reason.into() };
        let kind = Kind::from_c(kind).ok_or_else(|| invalid("unknown kind"))?;
        let source = std::str::from_utf8(bytes_of(source, length)).map_err(|_| invalid("it is not UTF-8"))?;
        *out = Arc::into_raw(Arc::new(Grammar::compile(&*vocabulary, kind, source)?));
        Ok(())
    })
}

/// # Safety
/// See textgrammar.h.
#[no_mangle]
pub unsafe extern "C" fn textgrammar_bytes(grammar: *const Grammar) -> usize {
    (*grammar).used()
}

/// # Safety
/// See textgrammar.h.
#[no_mangle]
pub unsafe extern "C" fn textgrammar_free(grammar: *const Grammar) {
    if !grammar.is_null() {
        free(|| drop(Arc::from_raw(grammar)));
    }
}

/// # Safety
/// See textgrammar.h.
#[no_mangle]
pub unsafe extern "C" fn textgrammar_matcher_new(grammar: *const Grammar, error: *mut Report) -> *mut Matcher {
    let mut made = std::ptr::null_mut();
    guard(error, || {
        Arc::increment_strong_count(grammar);
        let shared = Arc::from_raw(grammar);
        made = Box::into_raw(Box::new(Matcher::new(&shared)));
        Ok(())
    });
    made
}

/// # Safety
/// See textgrammar.h.
#[no_mangle]
pub unsafe extern "C" fn textgrammar_matcher_free(matcher: *mut Matcher) {
    if !matcher.is_null() {
        free(|| drop(Box::from_raw(matcher)));
    }
}

/// # Safety
/// See textgrammar.h.
#[no_mangle]
pub unsafe extern "C" fn textgrammar_matcher_bytes(matcher: *const Matcher) -> usize {
    (*matcher).used()
}

/// # Safety
/// See textgrammar.h.
#[no_mangle]
pub unsafe extern "C" fn textgrammar_matcher_mask(
    matcher: *mut Matcher,
    words: *mut u32,
    word_count: usize,
    error: *mut Report,
) -> c_int {
    guard(error, || (*matcher).mask(std::slice::from_raw_parts_mut(words, word_count)))
}

/// # Safety
/// See textgrammar.h.
#[no_mangle]
pub unsafe extern "C" fn textgrammar_matcher_forced(
    matcher: *mut Matcher,
    tokens: *mut u32,
    capacity: usize,
    count: *mut usize,
    error: *mut Report,
) -> c_int {
    *count = 0;
    guard(error, || {
        *count = (*matcher).forced(std::slice::from_raw_parts_mut(tokens, capacity))?;
        Ok(())
    })
}

/// # Safety
/// See textgrammar.h.
#[no_mangle]
pub unsafe extern "C" fn textgrammar_matcher_accept(
    matcher: *mut Matcher,
    tokens: *const u32,
    count: usize,
    ended: *mut c_int,
    error: *mut Report,
) -> c_int {
    *ended = 0;
    guard(error, || {
        *ended = (*matcher).accept(std::slice::from_raw_parts(tokens, count))? as c_int;
        Ok(())
    })
}
