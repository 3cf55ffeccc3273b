//! One chat template, run the way Hugging Face transformers runs Jinja: trim_blocks, lstrip_blocks, loop
//! controls, its `tojson`, `raise_exception` and `strftime_now`, Python's spelling of values.
//!
//! Templates are an operator's or a model file's, never a request's; even so each is limited: fuel and
//! output while rendering, and the length of expressions before compiling, because the compiler's time
//! and stack grow with them and are not covered by fuel.

use std::error::Error as StdError;
use std::ffi::{c_char, CString};
use std::fmt;
use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};

use crate::python;

pub type Clock = extern "C" fn(*const c_char, *mut c_char, usize) -> usize;

const NAME: &str = "chat";
/// Operators in one tag. Real templates stay below 50; compiling is quadratic in it.
const OPERATORS_MAX: usize = 500;
const WORDS_MAX: usize = 2000;
const COMPILE_STACK_BYTES: usize = 64 << 20;

#[derive(Clone, Copy, Debug)]
pub enum FailureKind {
    Invalid = 1,
    Raised = 2,
    Limit = 3,
}

#[derive(Debug)]
pub struct Failure {
    pub kind: FailureKind,
    pub message: String,
}

impl Failure {
    fn new(kind: FailureKind, message: impl Into<String>) -> Failure {
        Failure { kind, message: message.into() }
    }
}

/// What `raise_exception` was called with; found again at the end of an error's chain of sources.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for Raised {}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let mut cause: Option<&(dyn StdError + 'static)> = Some(&error);
        let mut innermost = &error;
        while let Some(current) = cause {
            if let Some(raised) = current.downcast_ref::<Raised>() {
                return Failure::new(FailureKind::Raised, raised.0.clone());
            }
            if let Some(inner) = current.downcast_ref::<Error>() {
                innermost = inner;
            }
            cause = current.source();
        }
        if innermost.kind() == ErrorKind::OutOfFuel {
            return Failure::new(FailureKind::Limit, "the template takes too many steps");
        }
        let mut message = innermost.kind().to_string();
        if let Some(detail) = innermost.detail() {
            message = format!("{message}: {detail}");
        }
        if let Some(line) = innermost.line().or(error.line()) {
            message = format!("{message} (line {line})");
        }
        Failure::new(FailureKind::Invalid, message)
    }
}

pub struct ChatTemplate {
    environment: Environment<'static>,
}

fn text_of<'a>(bytes: &'a [u8], what: &str) -> Result<&'a str, Failure> {
    std::str::from_utf8(bytes)
        .map_err(|_| Failure::new(FailureKind::Invalid, format!("{what} is not UTF-8")))
}

/// Checks the tags' sizes and turns transformers' `{% generation %}` marks, which only matter for training,
/// into a block without effect on text or white space.
fn prepare(source: &str) -> Result<String, Failure> {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find('{') {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let close = match tag.as_bytes().get(1) {
            Some(b'%') => "%}",
            Some(b'{') => "}}",
            Some(b'#') => "#}",
            _ => {
                out.push('{');
                rest = &tag[1..];
                continue;
            }
        };
        let length = tag_length(tag, close);
        let (whole, after) = tag.split_at(length);
        if close == "#}" {
            out.push_str(whole);
        } else {
            check_operators(whole)?;
            out.push_str(&without_generation(whole));
        }
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

/// Bytes from the opening mark to behind the closing one, or all that is left. Quoted text is skipped.
fn tag_length(tag: &str, close: &str) -> usize {
    let bytes = tag.as_bytes();
    let mut quote = 0u8;
    let mut i = 2;
    while i < bytes.len() {
        let byte = bytes[i];
        if close != "#}" && quote != 0 {
            match byte {
                b'\\' => i += 1,
                _ if byte == quote => quote = 0,
                _ => {}
            }
        } else if bytes[i..].starts_with(close.as_bytes()) {
            return i + 2;
        } else if byte == b'\'' || byte == b'"' {
            quote = byte;
        }
        i += 1;
    }
    bytes.len()
}

/// Counts operators, and words by the space between them, outside quoted text.
fn check_operators(tag: &str) -> Result<(), Failure> {
    let mut quote = 0u8;
    let mut operators = 0;
    let mut words = 0;
    let mut before = 0u8;
    let mut bytes = tag.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' if quote != 0 => {
                bytes.next();
            }
            _ if quote != 0 => {
                if byte == quote {
                    quote = 0;
                }
            }
            b'\'' | b'"' => quote = byte,
            _ if byte.is_ascii_whitespace() => {
                words += usize::from(!before.is_ascii_whitespace());
            }
            _ => operators += usize::from(b"~+-*/%([{.|<>=".contains(&byte)),
        }
        before = byte;
    }
    if operators > OPERATORS_MAX || words > WORDS_MAX {
        return Err(Failure::new(FailureKind::Invalid, "an expression is too long"));
    }
    Ok(())
}

fn without_generation(tag: &str) -> String {
    let Some(inner) = tag.strip_prefix("{%").and_then(|text| text.strip_suffix("%}")) else {
        return tag.to_string();
    };
    match inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+') {
        "generation" => tag.replacen("generation", "if true", 1),
        "endgeneration" => tag.replacen("endgeneration", "endif", 1),
        _ => tag.to_string(),
    }
}

fn environment_new(bos: &str, eos: &str, clock: Clock) -> Result<Environment<'static>, Failure> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
    environment.set_syntax(syntax);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(python::unknown_method);
    environment.set_formatter(|out, _, value| python::print(out, value));
    environment.add_filter("tojson", python::tojson);
    environment.add_filter("string", python::string);
    environment.add_filter("int", python::int);
    environment.add_filter("float", python::float);
    environment.add_filter("truncate", python::truncate);
    environment.add_filter("wordcount", python::wordcount);
    environment.add_test("iterable", python::is_iterable);
    environment.add_test("callable", python::is_callable);
    environment.remove_global("debug");
    environment.add_function("raise_exception", |message: &Value| -> Result<Value, Error> {
        let message = message.to_string();
        Err(Error::new(ErrorKind::InvalidOperation, message.clone())
            .with_source(Raised(message)))
    });
    environment.add_function("strftime_now", move |format: &str| strftime(clock, format));
    environment.add_global("bos_token", Value::from(bos));
    environment.add_global("eos_token", Value::from(eos));
    Ok(environment)
}

fn strftime(clock: Clock, format: &str) -> Result<String, Error> {
    let invalid = |text: &'static str| Error::new(ErrorKind::InvalidOperation, text);
    let format = CString::new(format).map_err(|_| invalid("strftime_now: NUL in the format"))?;
    let mut out = [0u8; 256];
    let length = clock(format.as_ptr(), out.as_mut_ptr().cast(), out.len()).min(out.len());
    String::from_utf8(out[..length].to_vec()).map_err(|_| invalid("strftime_now: not UTF-8"))
}

impl ChatTemplate {
    pub fn compile(
        source: &[u8],
        bos: &[u8],
        eos: &[u8],
        clock: Clock,
    ) -> Result<ChatTemplate, Failure> {
        let source = prepare(text_of(source, "the template")?)?;
        let bos = text_of(bos, "the bos text")?;
        let eos = text_of(eos, "the eos text")?;
        let mut environment = environment_new(bos, eos, clock)?;
        // The compiler recurses: on its own stack an overflow is out of reach of what `prepare` lets by.
        std::thread::scope(|scope| {
            std::thread::Builder::new()
                .stack_size(COMPILE_STACK_BYTES)
                .spawn_scoped(scope, move || {
                    environment.add_template_owned(NAME, source)?;
                    Ok(ChatTemplate { environment })
                })
                .map_err(|_| Failure::new(FailureKind::Limit, "no thread to compile on"))?
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    pub fn render(
        &self,
        context: &[u8],
        output_limit: usize,
        fuel: u64,
        emit: impl FnMut(&[u8]),
    ) -> Result<(), Failure> {
        let context: Value = serde_json::from_slice(context).map_err(|error| {
            Failure::new(FailureKind::Invalid, format!("the context is not JSON: {error}"))
        })?;
        // A copy of the environment shares the compiled template; only the fuel is this call's own.
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        let template = environment.get_template(NAME)?;
        let mut writer = Capped { emit, left: output_limit, full: false };
        let result = template.render_captured_to(context, &mut writer).map(|_| ());
        if writer.full {
            return Err(Failure::new(FailureKind::Limit, "the template prints too much"));
        }
        Ok(result?)
    }
}

/// Hands text on until the limit is reached.
struct Capped<F: FnMut(&[u8])> {
    emit: F,
    left: usize,
    full: bool,
}

impl<F: FnMut(&[u8])> io::Write for Capped<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.left {
            self.full = true;
            return Err(io::Error::other("output limit"));
        }
        self.left -= bytes.len();
        (self.emit)(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
