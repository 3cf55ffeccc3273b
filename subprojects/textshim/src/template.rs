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

use minijinja::filters;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, ValueOrKwargs};
use minijinja::{tests, AutoEscape, Environment, Error, ErrorKind, State, Value};

use crate::mark::{is_mark, Marks, Way, PLAIN, WAYS};
use crate::memory::Context;
use crate::python;
use crate::rewrite;

pub type Clock = extern "C" fn(*const c_char, *mut c_char, usize) -> usize;

const NAME: &str = "chat";
const ROLES: [&str; 4] = ["system", "user", "assistant", "tool"];
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
    source: String,
    clock: Clock,
    marks: Option<Marks>,
    marked: [Option<Environment<'static>>; WAYS.len()],
}

fn text_of<'a>(bytes: &'a [u8], what: &str) -> Result<&'a str, Failure> {
    std::str::from_utf8(bytes)
        .map_err(|_| Failure::new(FailureKind::Invalid, format!("{what} is not UTF-8")))
}

/// The stack of the compiler, which recurses, is its own: an overflow is out of reach of what `prepare` lets by.
fn compile_in(
    mut environment: Environment<'static>,
    source: String,
) -> Result<Environment<'static>, Failure> {
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .stack_size(COMPILE_STACK_BYTES)
            .spawn_scoped(scope, move || {
                environment.add_template_owned(NAME, source)?;
                Ok(environment)
            })
            .map_err(|_| Failure::new(FailureKind::Limit, "no thread to compile on"))?
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn environment_new(bos: &str, eos: &str, clock: Clock) -> Result<Environment<'static>, Failure> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
    environment.set_syntax(syntax);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(python::unknown_method);
    environment.set_formatter(|out, state, value| python::print(out, state, value));
    add_filters(&mut environment);
    environment.add_test("iterable", python::is_iterable);
    environment.add_test("callable", python::is_callable);
    environment.add_test("sequence", python::is_sequence);
    environment.add_function("dict", python::dict);
    environment.add_function("namespace", python::namespace);
    environment.remove_global("debug");
    environment.add_function(
        "raise_exception",
        |state: &State, message: &Value| -> Result<Value, Error> {
            let message = python::text_of(state, message)?;
            Err(Error::new(ErrorKind::InvalidOperation, message.clone())
                .with_source(Raised(message)))
        },
    );
    environment.add_function("strftime_now", move |format: Option<&str>, options: Kwargs| {
        let format = format.map_or_else(|| options.get("format"), Ok)?;
        options.assert_all_used()?;
        strftime(clock, format)
    });
    environment.add_global("bos_token", Value::from(bos));
    environment.add_global("eos_token", Value::from(eos));
    Ok(environment)
}

fn add_filters(environment: &mut Environment<'static>) {
    environment.add_filter("tojson", python::tojson);
    environment.add_filter("string", python::string);
    environment.add_filter("int", python::int);
    environment.add_filter("float", python::float);
    environment.add_filter("truncate", python::truncate);
    environment.add_filter("wordcount", python::wordcount);
    environment.add_filter("join", python::join);
    environment.add_filter("default", python::default);
    environment.add_filter("d", python::default);
    environment.add_filter("trim", python::trim);
    environment.add_filter("indent", python::indent);
    environment.add_filter("center", python::center);
    environment.add_filter("format", python::format);
    environment.add_filter("pprint", python::pprint);
    environment.add_filter("replace", python::replace);
    // Those that write their argument as text, whatever it is.
    for (name, filter) in [
        ("capitalize", Value::from_function(filters::capitalize)),
        ("e", Value::from_function(filters::escape)),
        ("escape", Value::from_function(filters::escape)),
        ("lines", Value::from_function(filters::lines)),
        ("lower", Value::from_function(filters::lower)),
        ("safe", Value::from_function(filters::safe)),
        ("split", Value::from_function(filters::split)),
        ("title", Value::from_function(filters::title)),
        ("upper", Value::from_function(filters::upper)),
    ] {
        environment.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            for arg in &args {
                python::weigh(state, arg)?;
            }
            filter.call(state, &args)
        });
    }
    // Sums of lists hold each other: more than minijinja charges for.
    let sum = Value::from_function(filters::sum);
    environment.add_filter("sum", move |state: &mut State, args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        state.consume_fuel(4 * args.first().and_then(Value::len).unwrap_or(0) as u64)?;
        sum.call(state, &args)
    });
    // A list for each item.
    let batch = Value::from_function(filters::batch);
    environment.add_filter("batch", move |state: &mut State, args: Rest<ValueOrKwargs>| {
        let args = args.into_values();
        state.consume_fuel(3 * args.first().and_then(Value::len).unwrap_or(0) as u64)?;
        batch.call(state, &args)
    });
    // What `rewrite` writes.
    environment.add_filter("_iterate", python::iterate);
    environment.add_filter("_text", python::string);
    environment.add_filter("_printf", python::percent);
    environment.add_filter("_addend", python::addend);
    environment.add_filter("_settled", python::settled);
    environment.add_filter("_weighed", python::weighed);
    // Python's Jinja has neither, and what they make of themselves again is not charged for.
    environment.remove_filter("chain");
    environment.remove_filter("zip");
    for (name, test) in [
        ("lower", Value::from_function(tests::is_lower)),
        ("upper", Value::from_function(tests::is_upper)),
    ] {
        environment.add_test(name, move |state: &mut State, value: &Value| {
            state.consume_fuel(value.as_str().map_or(0, str::len) as u64 / 64)?;
            Ok(test.call(state, &[value.clone()])?.is_true())
        });
    }
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
        let source = text_of(source, "the template")?.to_string();
        let prepared = prepare(&source, None)?;
        let bos = text_of(bos, "the bos text")?;
        let eos = text_of(eos, "the eos text")?;
        let environment = compile_in(environment_new(bos, eos, clock)?, prepared)?;
        let marked = [const { None }; WAYS.len()];
        Ok(ChatTemplate { environment, source, clock, marks: None, marked })
    }

    /// Compiles again, once for each way in which the template's own control tokens may be found. A way that marks
    /// nothing that the one before it does not is left out. Returns which there are, a bit for each.
    pub fn mark(&mut self, texts: &[&str], bos: &[u8], eos: &[u8]) -> Result<u32, Failure> {
        let marks = Marks::new(texts)
            .ok_or_else(|| Failure::new(FailureKind::Invalid, "too many control tokens"))?;
        let (bos, eos) = (text_of(bos, "the bos text")?, text_of(eos, "the eos text")?);
        let mut before = prepare(&self.source, None)?;
        let mut found = 0;
        for way in WAYS {
            let prepared = prepare(&self.source, Some((&marks, way)))?;
            let variables = way == Way::Whole
                && (self.source.contains("bos_token") || self.source.contains("eos_token"));
            let roles = ROLES.iter().any(|role| marks.word(role, way).is_some());
            if prepared == before && !variables && !roles {
                continue;
            }
            before.clone_from(&prepared);
            let (own_bos, own_eos) = (marks.data(bos, way), marks.data(eos, way));
            let mut environment = environment_new(&own_bos, &own_eos, self.clock)?;
            environment.add_global(format!("{PLAIN}bos_token"), Value::from(bos));
            environment.add_global(format!("{PLAIN}eos_token"), Value::from(eos));
            self.marked[way as usize] = Some(compile_in(environment, prepared)?);
            found |= 1 << way as u32;
        }
        self.marks = Some(marks);
        Ok(found)
    }

    /// Renders in one way what was rendered as `plain`, and sets bit i of `own` where plain[i] is the template's own. False
    /// when the two are not the same text; then nothing is known, whatever was set.
    pub fn trace(
        &self,
        way: Way,
        context: &[u8],
        fuel: u64,
        plain: &[u8],
        own: &mut [u8],
    ) -> Result<bool, Failure> {
        let (Some(environment), Some(marks)) = (&self.marked[way as usize], &self.marks) else {
            return Ok(false);
        };
        let context = Context::read(context)
            .ok_or_else(|| Failure::new(FailureKind::Invalid, "the context is not JSON"))?
            .with_roles(|role| marks.word(role, way));
        let mut environment = environment.clone();
        environment.set_fuel(Some(fuel));
        let template = environment.get_template(NAME)?;
        let mut writer = Follower { marks, plain, own, at: 0 };
        match template.render_captured_to(context.value(), &mut writer).map(|_| ()) {
            Ok(()) => Ok(writer.at == plain.len()),
            Err(error) => match Failure::from(error) {
                limit if matches!(limit.kind, FailureKind::Limit) => Err(limit),
                _ => Ok(false), // the text differs: the writer stopped, or the template did
            },
        }
    }

    pub fn render(
        &self,
        context: &[u8],
        output_limit: usize,
        fuel: u64,
        emit: impl FnMut(&[u8]),
    ) -> Result<(), Failure> {
        let context = Context::read(context)
            .ok_or_else(|| Failure::new(FailureKind::Invalid, "the context is not JSON"))?;
        // A copy of the environment shares the compiled template; only the fuel is this call's own.
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        let template = environment.get_template(NAME)?;
        let mut writer = Capped { emit, left: output_limit, full: false };
        let result = template.render_captured_to(context.value(), &mut writer).map(|_| ());
        if writer.full {
            return Err(Failure::new(FailureKind::Limit, "the template prints too much"));
        }
        Ok(result?)
    }
}

fn prepare(source: &str, marks: Option<(&Marks, Way)>) -> Result<String, Failure> {
    rewrite::prepare(source, marks)
        .map_err(|sentence| Failure::new(FailureKind::Invalid, sentence))
}

/// Compares what is written with `plain`, marks with what they stand for.
struct Follower<'a> {
    marks: &'a Marks,
    plain: &'a [u8],
    own: &'a mut [u8],
    at: usize,
}

impl io::Write for Follower<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let differs = || io::Error::other("another text");
        for c in std::str::from_utf8(bytes).map_err(|_| differs())?.chars() {
            let own = is_mark(c);
            let mut bytes = [0; 4];
            let c = if own { self.marks.plain(c).ok_or_else(differs)? } else { c };
            let text = c.encode_utf8(&mut bytes).as_bytes();
            if !self.plain[self.at..].starts_with(text) {
                return Err(differs());
            }
            let end = self.at + text.len();
            for at in self.at..if own { end } else { self.at } {
                self.own[at / 8] |= 1 << (at % 8);
            }
            self.at = end;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
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
