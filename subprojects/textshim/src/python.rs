//! Where a chat template sees that Jinja is Python: how values print, json.dumps, and methods of str that
//! minijinja-contrib's pycompat does not have. After the Python 3 library reference ("Built-in Types",
//! "json").

use std::fmt::Write;

use minijinja::filters;
use minijinja::value::{from_args, Kwargs, Tuple, ValueKind};
use minijinja::{Error, ErrorKind, Output, State, Value};
use minijinja_contrib::pycompat;

/// A value's nesting that is still written out; deeper ones are made by templates only to break things.
const DEPTH_MAX: usize = 128;

fn too_deep() -> Error {
    Error::new(ErrorKind::InvalidOperation, "value is nested too deeply")
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, text.into())
}

/// repr() of a float: the shortest digits that read back the same, an exponent below 1e-4 and from 1e16.
fn float_repr(number: f64) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{number:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    let mut plain = number.to_string();
    if !plain.contains('.') {
        plain.push_str(".0");
    }
    plain
}

fn is_float(value: &Value) -> Option<f64> {
    if value.kind() == ValueKind::Number && !value.is_integer() {
        f64::try_from(value.clone()).ok()
    } else {
        None
    }
}

/// str(value): what `{{ value }}` prints.
fn write_str(out: &mut String, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::String => out.push_str(value.as_str().unwrap_or_default()),
        ValueKind::Undefined => {}
        _ => write_repr(out, value, 0)?,
    }
    Ok(())
}

fn write_repr(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    if depth > DEPTH_MAX {
        return Err(too_deep());
    }
    if let Some(number) = is_float(value) {
        out.push_str(&float_repr(number));
        return Ok(());
    }
    match value.kind() {
        ValueKind::String => write_string_repr(out, value.as_str().unwrap_or_default()),
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::Seq => {
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.push(open);
            let mut count = 0;
            for item in value.try_iter()? {
                if count > 0 {
                    out.push_str(", ");
                }
                count += 1;
                write_repr(out, &item, depth + 1)?;
            }
            if value.is_tuple() && count == 1 {
                out.push(',');
            }
            out.push(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter()?.enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                write_repr(out, &key, depth + 1)?;
                out.push_str(": ");
                write_repr(out, &value.get_item(&key)?, depth + 1)?;
            }
            out.push('}');
        }
        _ => write!(out, "{value}").map_err(|_| invalid("cannot print"))?,
    }
    Ok(())
}

/// repr() of a str: single quotes unless only those occur inside.
fn write_string_repr(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if (c as u32) < 0x20 || c as u32 == 0x7f => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

pub fn print(out: &mut Output, value: &Value) -> Result<(), Error> {
    if let Some(text) = value.as_str() {
        return out.write_str(text).map_err(Error::from);
    }
    let mut text = String::new();
    write_str(&mut text, value)?;
    out.write_str(&text).map_err(Error::from)
}

pub fn string(state: &State, value: &Value) -> Result<Value, Error> {
    if value.kind() == ValueKind::String {
        return Ok(value.clone());
    }
    let mut text = String::new();
    write_str(&mut text, value)?;
    state.consume_fuel(text.len() as u64 / 16)?;
    Ok(Value::from(text))
}

struct Dumper<'a> {
    out: String,
    ascii: bool,
    sort: bool,
    indent: Option<&'a str>,
    item_separator: &'a str,
    key_separator: &'a str,
}

/// A Unicode noncharacter. The server marks user text with one; it must come out as it went in.
fn is_noncharacter(c: u32) -> bool {
    (0xfdd0..=0xfdef).contains(&c) || c & 0xfffe == 0xfffe
}

impl Dumper<'_> {
    fn line(&mut self, depth: usize) {
        if let Some(indent) = self.indent {
            self.out.push('\n');
            for _ in 0..depth {
                self.out.push_str(indent);
            }
        }
    }

    fn text(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if (c as u32) < 0x20 => {
                    let _ = write!(self.out, "\\u{:04x}", c as u32);
                }
                c if self.ascii && !c.is_ascii() && !is_noncharacter(c as u32) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn number(&mut self, value: &Value) {
        match is_float(value) {
            Some(number) if number.is_nan() => self.out.push_str("NaN"),
            Some(number) if number.is_infinite() => {
                self.out.push_str(if number > 0.0 { "Infinity" } else { "-Infinity" });
            }
            Some(number) => self.out.push_str(&float_repr(number)),
            None => {
                let _ = write!(self.out, "{value}");
            }
        }
    }

    fn key(&mut self, key: &Value) -> Result<(), Error> {
        match key.kind() {
            ValueKind::String => self.text(key.as_str().unwrap_or_default()),
            ValueKind::Number | ValueKind::Bool | ValueKind::None => {
                self.out.push('"');
                self.value(key, 0)?;
                self.out.push('"');
            }
            _ => return Err(invalid("keys must be str, int, float, bool or None")),
        }
        Ok(())
    }

    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(too_deep());
        }
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.number(value),
            ValueKind::String => self.text(value.as_str().unwrap_or_default()),
            ValueKind::Seq => self.list(value, depth)?,
            // A concatenation of lists is a list in Python; minijinja keeps it lazy.
            ValueKind::Iterable if value.len().is_some() => self.list(value, depth)?,
            ValueKind::Map => self.map(value, depth)?,
            kind => return Err(invalid(format!("{kind} is not JSON serializable"))),
        }
        Ok(())
    }

    fn list(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut empty = true;
        for item in value.try_iter()? {
            if !empty {
                self.out.push_str(self.item_separator);
            }
            empty = false;
            self.line(depth + 1);
            self.value(&item, depth + 1)?;
        }
        if !empty {
            self.line(depth);
        }
        self.out.push(']');
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.collect();
        if self.sort {
            keys.sort();
        }
        self.out.push('{');
        for (index, key) in keys.iter().enumerate() {
            if index > 0 {
                self.out.push_str(self.item_separator);
            }
            self.line(depth + 1);
            self.key(key)?;
            self.out.push_str(self.key_separator);
            self.value(&value.get_item(key)?, depth + 1)?;
        }
        if !keys.is_empty() {
            self.line(depth);
        }
        self.out.push('}');
        Ok(())
    }
}

/// json.dumps as transformers gives it to templates: (x, ensure_ascii=False, indent=None, separators=None,
/// sort_keys=False).
pub fn tojson(
    state: &State,
    value: &Value,
    ascii: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let option = |name: &str| -> Result<Option<Value>, Error> {
        Ok(options.get::<Option<Value>>(name)?.filter(|v| !v.is_none() && !v.is_undefined()))
    };
    let ascii = match ascii {
        Some(value) => Some(value),
        None => option("ensure_ascii")?,
    };
    let indent = match option("indent")? {
        None => None,
        Some(text) if text.as_str().is_some() => text.as_str().map(str::to_string),
        Some(number) => Some(" ".repeat(i64::try_from(number)?.clamp(0, 64) as usize)),
    };
    let (mut item, mut key) = if indent.is_some() { (",", ": ") } else { (", ", ": ") };
    let separators = option("separators")?;
    let (first, second);
    if let Some(pair) = separators {
        first = pair.get_item_by_index(0)?;
        second = pair.get_item_by_index(1)?;
        item = first.as_str().ok_or_else(|| invalid("separators must be strings"))?;
        key = second.as_str().ok_or_else(|| invalid("separators must be strings"))?;
    }
    let sort = option("sort_keys")?.is_some_and(|value| value.is_true());
    options.assert_all_used()?;
    let mut dumper = Dumper {
        out: String::new(),
        ascii: ascii.is_some_and(|value| value.is_true()),
        sort,
        indent: indent.as_deref(),
        item_separator: item,
        key_separator: key,
    };
    dumper.value(value, 0)?;
    state.consume_fuel(dumper.out.len() as u64 / 16)?;
    Ok(Value::from(dumper.out))
}

/// `int` and `float` as Jinja has them: what cannot be converted becomes the default.
pub fn int(
    state: &State,
    value: &Value,
    default: Option<Value>,
    base: Option<u32>,
    options: Kwargs,
) -> Result<Value, Error> {
    let default = match default {
        Some(default) => default,
        None => options.get::<Option<Value>>("default")?.unwrap_or_else(|| Value::from(0)),
    };
    Ok(filters::int(state, value, Some(default.clone()), base, options).unwrap_or(default))
}

pub fn float(value: &Value, default: Option<Value>) -> Value {
    let number = match value.kind() {
        ValueKind::String => value.as_str().and_then(|text| text.trim().parse::<f64>().ok()),
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        _ => f64::try_from(value.clone()).ok(),
    };
    number.map_or_else(|| default.unwrap_or_else(|| Value::from(0.0)), Value::from)
}

pub fn truncate(
    text: &str,
    length: Option<usize>,
    killwords: Option<bool>,
    end: Option<&str>,
    leeway: Option<usize>,
) -> Result<String, Error> {
    let (length, end) = (length.unwrap_or(255), end.unwrap_or("..."));
    let kept = length
        .checked_sub(end.chars().count())
        .ok_or_else(|| invalid("truncate: length is shorter than its end"))?;
    if text.chars().count() <= length + leeway.unwrap_or(5) {
        return Ok(text.to_string());
    }
    let cut: String = text.chars().take(kept).collect();
    let whole = cut.rsplit_once(' ').map_or(cut.as_str(), |(head, _)| head);
    Ok(format!("{}{end}", if killwords.unwrap_or(false) { &cut } else { whole }))
}

pub fn wordcount(text: &str) -> usize {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).count()
}

/// None and numbers are not iterable in Python.
pub fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

pub fn is_callable(value: &Value) -> bool {
    value.kind() == ValueKind::Plain
}

/// Methods that pycompat lacks come first, then its own.
pub fn unknown_method(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        if let Some(result) = str_method(state, text, method, args)? {
            return Ok(result);
        }
    }
    if value.kind() == ValueKind::Seq && method == "index" {
        let (wanted,): (&Value,) = from_args(args)?;
        return match value.try_iter()?.position(|item| item == *wanted) {
            Some(index) => Ok(Value::from(index)),
            None => Err(invalid("list.index: value is not in list")),
        };
    }
    pycompat::unknown_method_callback(state, value, method, args)
}

fn str_method(
    state: &State,
    text: &str,
    method: &str,
    args: &[Value],
) -> Result<Option<Value>, Error> {
    let result = match method {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "rsplit" => rsplit(text, args)?,
        "partition" | "rpartition" => partition(text, method == "rpartition", args)?,
        "ljust" | "rjust" | "center" => justify(state, text, method, args)?,
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            let missing = width.saturating_sub(text.chars().count());
            state.consume_fuel(missing as u64)?;
            let digits = text.trim_start_matches(['+', '-']);
            let sign = if text.len() > digits.len() { &text[..1] } else { "" };
            Value::from(format!("{sign}{}{}", "0".repeat(missing), &text[sign.len()..]))
        }
        "index" | "rindex" => {
            let (what,): (&str,) = from_args(args)?;
            let found = if method == "index" { text.find(what) } else { text.rfind(what) };
            let offset = found.ok_or_else(|| invalid("substring not found"))?;
            Value::from(text[..offset].chars().count())
        }
        "casefold" => {
            let () = from_args(args)?;
            Value::from(text.to_lowercase())
        }
        "swapcase" => {
            let () = from_args(args)?;
            let swap = |c: char| -> String {
                if c.is_uppercase() {
                    c.to_lowercase().collect()
                } else {
                    c.to_uppercase().collect()
                }
            };
            Value::from(text.chars().map(swap).collect::<String>())
        }
        _ => return Ok(None),
    };
    Ok(Some(result))
}

fn rsplit(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, limit): (Option<&str>, Option<i64>) = from_args(args)?;
    let limit = match limit {
        Some(count) if count >= 0 => count as usize,
        _ => usize::MAX - 1,
    };
    let mut parts: Vec<&str> = match separator {
        Some("") => return Err(invalid("empty separator")),
        Some(separator) => text.rsplitn(limit + 1, separator).collect(),
        None => {
            let mut parts = Vec::new();
            let mut rest = text.trim_end();
            while !rest.is_empty() && parts.len() < limit {
                match rest.char_indices().rev().find(|(_, c)| c.is_whitespace()) {
                    Some((at, c)) => {
                        parts.push(&rest[at + c.len_utf8()..]);
                        rest = rest[..at].trim_end();
                    }
                    None => break,
                }
            }
            if !rest.is_empty() {
                parts.push(if parts.len() < limit { rest.trim_start() } else { rest });
            }
            parts
        }
    };
    parts.reverse();
    Ok(parts.into_iter().map(Value::from).collect())
}

fn partition(text: &str, last: bool, args: &[Value]) -> Result<Value, Error> {
    let (separator,): (&str,) = from_args(args)?;
    if separator.is_empty() {
        return Err(invalid("empty separator"));
    }
    let found = if last { text.rfind(separator) } else { text.find(separator) };
    let (head, middle, tail) = match found {
        Some(at) => (&text[..at], separator, &text[at + separator.len()..]),
        None if last => ("", "", text),
        None => (text, "", ""),
    };
    Ok(Value::from(Tuple::from([Value::from(head), Value::from(middle), Value::from(tail)])))
}

fn justify(state: &State, text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, fill): (usize, Option<&str>) = from_args(args)?;
    let fill = fill.unwrap_or(" ");
    if fill.chars().count() != 1 {
        return Err(invalid("the fill character must be exactly one character long"));
    }
    let missing = width.saturating_sub(text.chars().count());
    state.consume_fuel(missing as u64)?;
    // CPython's str.center puts the odd one out on the left when the width is odd.
    let left = match method {
        "ljust" => 0,
        "rjust" => missing,
        _ => missing / 2 + (missing & width & 1),
    };
    Ok(Value::from(format!("{}{text}{}", fill.repeat(left), fill.repeat(missing - left))))
}
