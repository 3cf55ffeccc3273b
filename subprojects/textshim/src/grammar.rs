//! Constrained output: one vocabulary a model, compiled grammars, and a matcher for each sequence (llguidance).
//!
//! What a matcher answers depends only on its grammar and on the tokens that it was given, never on other
//! sequences: each is a deep copy of the grammar as it was compiled, with lexer caches of its own. So are its
//! limits (fuel, lexer states): an answer cannot fail because another one filled a cache, or succeed for that.
//!
//! Every object has a ledger of the bytes that it holds. Grammars come from requests: sources are bounded by the
//! caller, compiling and each step by fuel, and a panic inside the library is a failure of that grammar alone.

use std::ffi::{c_char, c_void};
use std::mem::ManuallyDrop;
use std::sync::Arc;

use llguidance::api::{GrammarWithLexer, ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use llguidance::{Matcher as Inner, ParserFactory};
use serde_json::{json, Value};

use crate::memory::{charge, Ledger};
use crate::{gbnf, schema};

/// Between two JSON tokens: nothing, a few blanks, or a line's end and its indentation. Bounded, because small
/// models otherwise write blanks until the answer's end.
const JSON_BLANKS: &str = r"[ \t]{1,4}|\r?\n[ \t]{0,64}";

/// How a C tokenizer is asked for the tokens of bytes: returns their number, writes at most `capacity`.
pub type Tokenize = extern "C" fn(*mut c_void, *const c_char, usize, *mut u32, usize) -> usize;

#[derive(Clone, Debug)]
pub enum Failure {
    /// The grammar is wrong or asks for what is not supported: where (a JSON pointer, or empty) and why.
    Invalid { path: String, reason: String },
    /// It is too large or takes too many steps.
    Limit(String),
}

/// Cuts what must not reach a client: backtraces and dumps of states.
fn clean(message: &str) -> String {
    let end = ["<backtrace>", "<non-verbose/>", "<state>"]
        .iter()
        .filter_map(|mark| message.find(mark))
        .min()
        .unwrap_or(message.len());
    message[..end].trim().chars().filter(|c| !c.is_control()).take(300).collect()
}

fn failure_of(message: &str) -> Failure {
    let text = clean(message);
    if text.is_empty() || text == "NoExtensionBias" {
        return Failure::Invalid { path: String::new(), reason: "no text fits it".into() };
    }
    let lower = text.to_ascii_lowercase();
    if ["fuel", "too complex", "too large", "too big", "limit", "exceeded"].iter().any(|mark| lower.contains(mark)) {
        Failure::Limit(text)
    } else {
        Failure::Invalid { path: String::new(), reason: text }
    }
}

struct Tokens {
    trie: TokTrie,
    tokenize: Tokenize,
    arg: *mut c_void,
}

// SAFETY: the trie is only read; the C tokenizer may be called from any number of threads (textgrammar.h).
unsafe impl Send for Tokens {}
unsafe impl Sync for Tokens {}

impl TokenizerEnv for Tokens {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        // The C tokenizer takes UTF-8; what is left over at an edge goes token by token.
        self.trie.tokenize_with_greedy_fallback(bytes, |text| {
            let mut out = vec![0; text.len() + 1];
            let count = (self.tokenize)(self.arg, text.as_ptr().cast(), text.len(), out.as_mut_ptr(), out.len());
            out.truncate(count.min(out.len()));
            out
        })
    }
}

/// A failure leaves the ledger that it was made in: the caller frees it under another one.
fn leave<T>(ledger: &Ledger, result: Result<T, Failure>) -> Result<T, Failure> {
    result.map_err(|failure| {
        let copy = failure.clone();
        charge(ledger, || drop(failure));
        copy
    })
}

/// A value whose bytes are entered in a ledger of its own, from its making to its end.
struct Charged<T> {
    ledger: Box<Ledger>,
    value: ManuallyDrop<T>,
}

impl<T> Charged<T> {
    fn make(body: impl FnOnce() -> Result<T, Failure>) -> Result<Charged<T>, Failure> {
        let ledger = Box::new(Ledger::new());
        let made = charge(&ledger, body);
        let value = ManuallyDrop::new(leave(&ledger, made)?);
        Ok(Charged { ledger, value })
    }

    fn with<R>(&mut self, body: impl FnOnce(&mut T) -> Result<R, Failure>) -> Result<R, Failure> {
        let value = &mut self.value;
        let result = charge(&self.ledger, || body(value));
        leave(&self.ledger, result)
    }

    fn used(&self) -> usize {
        self.ledger.used()
    }
}

impl<T> Drop for Charged<T> {
    fn drop(&mut self) {
        let value = &mut self.value;
        // SAFETY: dropped once, here.
        charge(&self.ledger, || unsafe { ManuallyDrop::drop(value) });
    }
}

/// The model's tokens as a trie, and what is computed once for all grammars. Immutable.
pub struct Vocabulary {
    factory: Charged<ParserFactory>,
    words: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Limits {
    compile_fuel: u64,
    step_fuel: u64,
    step_items: u32,
    lexer_states: u32,
    grammar_symbols: u32,
}

impl Vocabulary {
    /// `tokens` as bytes; control tokens begin with 0xFF, so that no text matches them.
    pub fn new(
        tokens: &dyn Fn(u32) -> Vec<u8>,
        count: u32,
        ends: &[u32],
        tokenize: Tokenize,
        arg: *mut c_void,
        limits: Limits,
    ) -> Result<Vocabulary, Failure> {
        let first = *ends.first().ok_or_else(|| failure_of("the model has no end token"))?;
        let factory = Charged::make(|| {
            let words: Vec<Vec<u8>> = (0..count).map(tokens).collect();
            let trie = TokTrie::from(&TokRxInfo::new(count, first), &words).with_eos_tokens(ends);
            let env: TokEnv = Arc::new(Tokens { trie, tokenize, arg });
            let capabilities = InferenceCapabilities { ff_tokens: true, ..Default::default() };
            let slices = SlicedBiasComputer::general_slices();
            let mut factory = ParserFactory::new(&env, capabilities, &slices).map_err(|e| failure_of(&e.to_string()))?;
            factory.quiet();
            *factory.limits_mut() = ParserLimits {
                initial_lexer_fuel: limits.compile_fuel,
                step_lexer_fuel: limits.step_fuel,
                step_max_items: limits.step_items as usize,
                max_lexer_states: limits.lexer_states as usize,
                max_grammar_size: limits.grammar_symbols as usize,
                verbose_errors: false,
                ..ParserLimits::default()
            };
            Ok(factory)
        })?;
        Ok(Vocabulary { factory, words: (count as usize).div_ceil(32) })
    }

    pub fn used(&self) -> usize {
        self.factory.used()
    }
}

#[repr(i32)]
#[derive(Clone, Copy)]
pub enum Kind {
    JsonSchema = 0,
    Regex = 1,
    /// A JSON list of strings.
    Choice = 2,
    /// Lark as llguidance reads it, or GBNF.
    Grammar = 3,
}

impl Kind {
    pub fn from_c(kind: i32) -> Option<Kind> {
        [Kind::JsonSchema, Kind::Regex, Kind::Choice, Kind::Grammar].get(usize::try_from(kind).ok()?).copied()
    }
}

/// Every kind in the library's one form.
fn read(kind: Kind, source: &str) -> Result<TopLevelGrammar, Failure> {
    let invalid = |reason: String| Failure::Invalid { path: String::new(), reason };
    match kind {
        Kind::JsonSchema => {
            let value: Value = serde_json::from_str(source).map_err(|_| invalid("the schema is not JSON".into()))?;
            let mut object = schema::normalize(&value)
                .map_err(|refusal| Failure::Invalid { path: refusal.path, reason: refusal.reason })?;
            object["x-guidance"] = json!({ "whitespace_pattern": JSON_BLANKS });
            Ok(TopLevelGrammar::from_grammar(GrammarWithLexer::from_json_schema(object)))
        }
        Kind::Regex => Ok(TopLevelGrammar::from_regex(source)),
        Kind::Choice => {
            let choices: Vec<String> = serde_json::from_str(source).map_err(|_| invalid("choices are strings".into()))?;
            if choices.is_empty() || choices.iter().any(String::is_empty) {
                return Err(invalid("choices are a list of at least one string, none empty".into()));
            }
            let words: Vec<String> = choices.iter().map(|choice| Value::String(choice.clone()).to_string()).collect();
            // One terminal: as rules, more than 2,000 would not fit the parser's row.
            Ok(TopLevelGrammar::from_lark(format!("start: CHOICE\nCHOICE: {}", words.join(" | "))))
        }
        Kind::Grammar if gbnf::is_gbnf(source) => {
            Ok(TopLevelGrammar::from_lark(gbnf::to_lark(source).map_err(invalid)?))
        }
        // Lists of grammars in JSON stay inside: their options could turn limits off.
        Kind::Grammar if source.trim_start().starts_with('{') => Err(invalid("a grammar is Lark or GBNF".into())),
        Kind::Grammar if source.trim().is_empty() => Err(invalid("the grammar is empty".into())),
        Kind::Grammar => Ok(TopLevelGrammar::from_lark(source.to_string())),
    }
}

/// A compiled grammar. Immutable, so that all matchers begin alike.
pub struct Grammar {
    inner: Charged<Inner>,
    words: usize,
}

// SAFETY: nothing is changed after compile; deep copies are made under the inner lock.
unsafe impl Send for Grammar {}
unsafe impl Sync for Grammar {}

impl Grammar {
    pub fn compile(vocabulary: &Vocabulary, kind: Kind, source: &str) -> Result<Grammar, Failure> {
        let inner = Charged::make(|| {
            let mut matcher = Inner::new(vocabulary.factory.value.create_parser(read(kind, source)?));
            // The first mask is computed here, for all: it finds grammars that nothing matches.
            if matcher.get_error().is_none() {
                let _ = matcher.compute_mask_or_eos();
            }
            match matcher.get_error() {
                None => Ok(matcher),
                Some(message) => Err(failure_of(&message)),
            }
        })?;
        Ok(Grammar { inner, words: vocabulary.words })
    }

    pub fn used(&self) -> usize {
        self.inner.used()
    }
}

/// Where one sequence is in its grammar. One thread at a time.
pub struct Matcher {
    inner: Charged<Inner>,
    words: usize,
    // Last, so that what is shared with the grammar is freed in the grammar's ledger.
    _grammar: Arc<Grammar>,
}

impl Matcher {
    pub fn new(grammar: &Arc<Grammar>) -> Matcher {
        let Ok(inner) = Charged::make(|| Ok(grammar.inner.value.deep_clone())) else { unreachable!() };
        Matcher { inner, words: grammar.words, _grammar: grammar.clone() }
    }

    pub fn used(&self) -> usize {
        self.inner.used()
    }

    /// One bit a token, least significant first: set where the token may come next.
    pub fn mask(&mut self, out: &mut [u32]) -> Result<(), Failure> {
        let words = self.words;
        self.inner.with(|inner| {
            let set = inner.compute_mask_or_eos().map_err(|e| failure_of(&e.to_string()))?;
            let count = words.min(out.len()).min(set.as_slice().len());
            out.fill(0);
            out[..count].copy_from_slice(&set.as_slice()[..count]);
            Ok(())
        })
    }

    /// The tokens that must come next, as the tokenizer spells them.
    pub fn forced(&mut self, out: &mut [u32]) -> Result<usize, Failure> {
        self.inner.with(|inner| {
            if inner.is_stopped() && inner.get_error().is_none() {
                return Ok(0);
            }
            let tokens = inner.compute_ff_tokens();
            if let Some(message) = inner.get_error() {
                return Err(failure_of(&message));
            }
            let count = tokens.len().min(out.len());
            out[..count].copy_from_slice(&tokens[..count]);
            Ok(count)
        })
    }

    /// Moves on behind `tokens`; true when nothing may follow but an end token.
    pub fn accept(&mut self, tokens: &[u32]) -> Result<bool, Failure> {
        self.inner.with(|inner| {
            inner.consume_tokens(tokens).map_err(|e| failure_of(&e.to_string()))?;
            Ok(inner.is_stopped())
        })
    }
}
