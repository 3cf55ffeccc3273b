//! Where a chat template sees that Jinja is Python: how values print, json.dumps, filters and tests. After the
//! Python 3 library reference ("Built-in Types", "json") and Jinja's "List of Builtin Filters".

use std::fmt::Write;

use minijinja::filters;
use minijinja::formatting::{self, FormatStyle};
use minijinja::value::{from_args, Kwargs, Rest, ValueKind, ValueOrKwargs};
use minijinja::{functions, Error, ErrorKind, Output, State, Value};
use minijinja_contrib::pycompat;

use crate::strings;

/// A value's nesting that is still written out; deeper ones are made by templates only to break things.
const DEPTH_MAX: usize = 128;

fn too_deep() -> Error {
    Error::new(ErrorKind::InvalidOperation, "value is nested too deeply")
}

pub fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, text.into())
}

/// What str.strip and str.split take for space.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
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

/// Charges for all that writing a value would go through, before it is written: lists that repeat themselves
/// and values that hold one another twice print without an end, and minijinja's own writing does not count.
pub fn weigh(state: &State, value: &Value) -> Result<(), Error> {
    weigh_at(state, value, 0, 0)
}

/// Each element costs its line's indentation too.
pub fn weigh_at(state: &State, value: &Value, indent: usize, depth: usize) -> Result<(), Error> {
    if depth > DEPTH_MAX {
        return Err(too_deep());
    }
    let bytes = value.as_str().map_or(0, str::len) + depth * indent;
    state.consume_fuel(1 + bytes as u64 / 16)?;
    match value.kind() {
        ValueKind::Map => {
            for key in value.try_iter()? {
                weigh_at(state, &key, indent, depth + 1)?;
                weigh_at(state, &value.get_item(&key)?, indent, depth + 1)?;
            }
        }
        ValueKind::Seq | ValueKind::Iterable if value.len().is_some() => {
            for item in value.try_iter()? {
                weigh_at(state, &item, indent, depth + 1)?;
            }
        }
        _ => {}
    }
    Ok(())
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

/// str(value) as a Rust string.
pub fn text_of(state: &State, value: &Value) -> Result<String, Error> {
    weigh(state, value)?;
    let mut text = String::new();
    write_str(&mut text, value)?;
    Ok(text)
}

pub fn print(out: &mut Output, state: &State, value: &Value) -> Result<(), Error> {
    if let Some(text) = value.as_str() {
        return out.write_str(text).map_err(Error::from);
    }
    out.write_str(&text_of(state, value)?).map_err(Error::from)
}

pub fn string(state: &State, value: &Value) -> Result<Value, Error> {
    if value.kind() == ValueKind::String {
        return Ok(value.clone());
    }
    Ok(Value::from(text_of(state, value)?))
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
                c if self.ascii
                    && !c.is_ascii()
                    && !is_noncharacter(c as u32)
                    && !crate::mark::is_mark(c) =>
                {
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
    weigh_at(state, value, indent.as_ref().map_or(0, String::len), 0)?;
    dumper.value(value, 0)?;
    Ok(Value::from(dumper.out))
}

/// What a `for` goes over. None is refused, as in Python; the characters of a text become a list, so that
/// loop.last is known.
pub fn iterate(state: &State, value: Value) -> Result<Value, Error> {
    if value.is_none() {
        return Err(invalid("'NoneType' object is not iterable"));
    }
    let Some(text) = value.as_str() else {
        return Ok(value);
    };
    state.consume_fuel(text.len() as u64 / 2)?;
    Ok(text.chars().map(Value::from).collect())
}

/// Elements of a list that are copied for one fuel: 24 bytes each, and what a fuel may hold.
const SLOTS_OF_FUEL: u64 = 10;
/// Lists up to this long may stay lazy: what minijinja makes of them is as cheap as copying.
const LAZY_MAX: usize = 1000;

/// A lazy sequence becomes a list, as it is in Python, and is charged for.
pub fn settled(state: &State, value: Value) -> Result<Value, Error> {
    let count = match value.kind() {
        ValueKind::Iterable => value.len(),
        _ => None,
    };
    let Some(count) = count else {
        return Ok(value);
    };
    state.consume_fuel(1 + count as u64 / SLOTS_OF_FUEL)?;
    Ok(value.try_iter()?.collect())
}

/// An operand of `+`: sums of sums would be as long as 2 to the number of operations.
pub fn addend(state: &State, value: Value) -> Result<Value, Error> {
    if value.len().is_some_and(|count| count > LAZY_MAX) {
        return settled(state, value);
    }
    Ok(value)
}

/// A list, tuple or dict that a template writes down: as large as it would be if it held nothing twice.
pub fn weighed(state: &State, value: Value) -> Result<Value, Error> {
    charge_nodes(state, &value, 0, &mut 0)?;
    Ok(value)
}

/// Looking at a few values is no more work than an instruction.
const NODES_OF_FUEL: u64 = 4;

fn charge_nodes(
    state: &State,
    value: &Value,
    depth: usize,
    count: &mut u64,
) -> Result<(), Error> {
    if depth > DEPTH_MAX {
        return Ok(()); // linear from here on, and refused where it would be written
    }
    *count += 1;
    let whole = u64::from(*count % NODES_OF_FUEL == 0);
    state.consume_fuel(whole + value.as_str().map_or(0, str::len) as u64 / 1024)?;
    match value.kind() {
        ValueKind::Map => {
            for key in value.try_iter()? {
                charge_nodes(state, &value.get_item(&key)?, depth + 1, count)?;
            }
        }
        ValueKind::Seq | ValueKind::Iterable if value.len().is_some() => {
            for item in value.try_iter()? {
                charge_nodes(state, &item, depth + 1, count)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// `left % right` where `left` begins with quoted text.
pub fn percent(state: &State, left: &Value, right: Value) -> Result<Value, Error> {
    let Some(format) = left.as_str() else {
        let (left, right) = (i64::try_from(left.clone())?, i64::try_from(right)?);
        let rest = left.checked_rem(right).ok_or_else(|| invalid("integer modulo by zero"))?;
        return Ok(Value::from(if rest != 0 && (rest < 0) != (right < 0) {
            rest + right
        } else {
            rest
        }));
    };
    if right.is_tuple() {
        state.consume_fuel(right.len().unwrap_or(0) as u64 / 2)?;
        let values: Vec<Value> = right.try_iter()?.collect();
        return printf(state, format, &values, None);
    }
    let names = (right.kind() == ValueKind::Map).then(|| right.clone());
    printf(state, format, &[right], names)
}

pub fn format(state: &State, format: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let args = args.into_values();
    let (values, options): (&[Value], Kwargs) = from_args(&args)?;
    let names: Vec<(String, Value)> = options
        .args()
        .map(|name| Ok((name.to_string(), options.get::<Value>(name)?)))
        .collect::<Result<_, Error>>()?;
    let names = (!names.is_empty()).then(|| names.into_iter().collect::<Kwargs>().into());
    printf(state, &text_of(state, format)?, values, names)
}

/// For a number that is formatted: 1e308 has 309 digits before its point, with separators 411.
const FUEL_NUMBER: u64 = 8;

/// Widths are charged before minijinja fills them.
fn charge_width(state: &State, width: i64) -> Result<(), Error> {
    if width.unsigned_abs() > 999 {
        return Err(invalid("a width of more than 999"));
    }
    state.consume_fuel(width.unsigned_abs() / 16)
}

fn charge_widths(state: &State, spec: &str) -> Result<(), Error> {
    for digits in spec.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty()) {
        charge_width(state, digits.parse().unwrap_or(i64::MAX))?;
    }
    Ok(())
}

/// What follows a field's name. A key in brackets may hold any character.
fn skip_field_name(mut rest: &str) -> &str {
    loop {
        let end = rest.find(['[', ':', '}']).unwrap_or(rest.len());
        rest = &rest[end..];
        match rest.strip_prefix('[') {
            Some(key) => rest = key.split_once(']').map_or("", |(_, after)| after),
            None => return rest,
        }
    }
}

/// What follows a fill and its alignment, if there are any. The fill may be any character.
fn skip_fill(spec: &str) -> &str {
    let mut chars = spec.chars();
    match (chars.next(), chars.next()) {
        (Some(_), Some('<' | '>' | '^')) => chars.as_str(),
        _ => spec,
    }
}

/// Charges str.format before minijinja does it: each field may print any of the arguments, which parts of one do
/// not surpass. Fields are found where minijinja finds them, so that it sees no width that was not charged.
fn charge_str_format(state: &State, text: &str, args: &[Value]) -> Result<(), Error> {
    let mut bytes = 0;
    for arg in args {
        bytes += text_of(state, arg)?.len();
    }
    let mut rest = text;
    while let Some((_, after)) = rest.split_once('{') {
        if let Some(after) = after.strip_prefix('{') {
            rest = after;
            continue;
        }
        state.consume_fuel(FUEL_NUMBER + bytes as u64 / 64)?;
        rest = skip_field_name(after);
        if let Some(spec) = rest.strip_prefix(':') {
            let spec = skip_fill(spec);
            let (spec, after) = spec.split_once('}').unwrap_or((spec, ""));
            charge_widths(state, spec)?;
            rest = after;
        }
    }
    Ok(())
}

/// Python's `format % values`: every conversion of its own, then minijinja for the spelling.
fn printf(
    state: &State,
    format: &str,
    values: &[Value],
    names: Option<Value>,
) -> Result<Value, Error> {
    let too_few = || invalid("not enough arguments for format string");
    let mut values = values.iter();
    let (mut plain, mut chosen) = (String::new(), Vec::new());
    let mut rest = format;
    while let Some(at) = rest.find('%') {
        plain.push_str(&rest[..=at]);
        rest = &rest[at + 1..];
        let mut value = None;
        if let Some(name) = rest.strip_prefix('(') {
            let names = names.as_ref().ok_or_else(|| invalid("format requires a mapping"))?;
            let (name, after) =
                name.split_once(')').ok_or_else(|| invalid("incomplete format key"))?;
            value = Some(names.get_attr(name)?);
            rest = after;
        }
        let end = rest.find(|c: char| !"#0- +*.123456789".contains(c)).unwrap_or(rest.len());
        let (spec, after) = rest.split_at(end);
        let after = after.strip_prefix(['h', 'l', 'L']).unwrap_or(after);
        let mut kind = after.chars().next().ok_or_else(|| invalid("incomplete format"))?;
        if !"diouxXeEfFgGcrsa%".contains(kind) {
            return Err(invalid(format!("unsupported format character '{kind}'")));
        }
        rest = &after[kind.len_utf8()..];
        state.consume_fuel(FUEL_NUMBER)?;
        charge_widths(state, spec)?;
        for _ in spec.matches('*') {
            let width = values.next().ok_or_else(too_few)?.clone();
            charge_width(state, i64::try_from(width.clone())?)?;
            chosen.push(width);
        }
        if kind != '%' {
            let value = match value {
                Some(value) => value,
                None => values.next().ok_or_else(too_few)?.clone(),
            };
            chosen.push(match kind {
                's' => Value::from(text_of(state, &value)?),
                'r' | 'a' => {
                    weigh(state, &value)?;
                    let mut text = String::new();
                    write_repr(&mut text, &value, 0)?;
                    kind = 's';
                    Value::from(text)
                }
                _ => match value.kind() {
                    ValueKind::Bool => Value::from(u8::from(value.is_true())),
                    ValueKind::Number | ValueKind::String => value,
                    _ => return Err(invalid(format!("%{kind} format: a number is required"))),
                },
            });
        }
        plain.push_str(spec);
        plain.push(kind);
    }
    plain.push_str(rest);
    if names.is_none() && values.next().is_some() {
        return Err(invalid("not all arguments converted during string formatting"));
    }
    formatting::format(FormatStyle::Printf, &plain, &chosen).map(Value::from)
}

pub fn pprint(state: &State, value: &Value) -> Result<Value, Error> {
    weigh_at(state, value, 4, 0)?;
    Ok(Value::from(filters::pprint(value)))
}

pub fn replace(state: &State, value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let args = args.into_values();
    let (from, to, count, options): (&Value, &Value, Option<i64>, Kwargs) = from_args(&args)?;
    let count = count.or(options.get("count")?);
    options.assert_all_used()?;
    let count = count.and_then(|count| usize::try_from(count).ok()).unwrap_or(usize::MAX);
    let text = text_of(state, value)?;
    let (from, to) = (text_of(state, from)?, text_of(state, to)?);
    let found = text.matches(&from).take(count).count();
    let grown = found.saturating_mul(to.len().saturating_sub(from.len()));
    state.consume_fuel(grown as u64 / 16)?;
    Ok(Value::from(text.replacen(&from, &to, count)))
}

pub fn join(
    state: &mut State,
    values: &Value,
    separator: Option<Value>,
    attribute: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let separator = match separator.or(options.get("d")?) {
        Some(separator) => text_of(state, &separator)?,
        None => String::new(),
    };
    let attribute = attribute.or(options.get("attribute")?).filter(|value| !value.is_none());
    options.assert_all_used()?;
    if values.is_none() {
        return Err(invalid("'NoneType' object is not iterable"));
    }
    let mut out = String::new();
    for (index, item) in values.try_iter()?.enumerate() {
        if index > 0 {
            out.push_str(&separator);
        }
        let text = match &attribute {
            None => text_of(state, &item)?,
            Some(path) => text_of(state, &attribute_of(item, path)?)?,
        };
        // A text that grows is held twice for a moment.
        state.consume_fuel(1 + (separator.len() + text.len()) as u64 / 32)?;
        out.push_str(&text);
    }
    Ok(Value::from(out))
}

/// Jinja's dotted path, whose numbers are indices.
fn attribute_of(item: Value, path: &Value) -> Result<Value, Error> {
    let Some(path) = path.as_str() else {
        return item.get_item(path);
    };
    path.split('.').try_fold(item, |item, part| match part.parse::<usize>() {
        Ok(index) => item.get_item_by_index(index),
        Err(_) => item.get_attr(part),
    })
}

pub fn default(
    value: Value,
    other: Option<Value>,
    boolean: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let other = other.or(options.get("default_value")?).unwrap_or_else(|| Value::from(""));
    let boolean = boolean.or(options.get("boolean")?).is_some_and(|value| value.is_true());
    options.assert_all_used()?;
    Ok(if value.is_undefined() || (boolean && !value.is_true()) { other } else { value })
}

pub fn trim(
    state: &State,
    value: &Value,
    characters: Option<Value>,
    options: Kwargs,
) -> Result<Value, Error> {
    let characters = characters.or(options.get("chars")?).filter(|value| !value.is_none());
    options.assert_all_used()?;
    let text = text_of(state, value)?;
    Ok(Value::from(strings::strip(&text, characters.as_ref().and_then(Value::as_str), true, true)))
}

pub fn center(state: &State, value: &Value, width: Option<Value>) -> Result<Value, Error> {
    let width = width.unwrap_or_else(|| Value::from(80));
    strings::justify(state, &text_of(state, value)?, "center", &[width])
}

pub fn indent(state: &State, value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let args = args.into_values();
    let (width, first, blank, options): (Option<Value>, Option<bool>, Option<bool>, Kwargs) =
        from_args(&args)?;
    let width = width.or(options.get("width")?).unwrap_or_else(|| Value::from(4));
    let first = first.or(options.get("first")?).unwrap_or(false);
    let blank = blank.or(options.get("blank")?).unwrap_or(false);
    options.assert_all_used()?;
    let space = match width.as_str() {
        Some(text) => text.to_string(),
        None => {
            let count = i64::try_from(width)?.max(0) as u64;
            state.consume_fuel(count / 16)?;
            " ".repeat(count as usize)
        }
    };
    // Jinja ends the text with one more line end first, so that an empty last line counts.
    let text = text_of(state, value)? + "\n";
    let lines = strings::lines(state, &text, false)?;
    state.consume_fuel((lines.len() * (1 + space.len())) as u64 / 16)?;
    let mut out = if first { space.clone() } else { String::new() };
    for (index, line) in lines.iter().enumerate() {
        if index > 0 {
            out.push('\n');
            if blank || !line.is_empty() {
                out.push_str(&space);
            }
        }
        out.push_str(line);
    }
    Ok(Value::from(out))
}

/// dict(mapping or pairs, name=value…).
pub fn dict(state: &State, value: Option<Value>, options: Kwargs) -> Result<Value, Error> {
    let mut pairs = Vec::new();
    match value {
        None => {}
        Some(value) if value.kind() == ValueKind::Map => {
            for key in value.try_iter()? {
                let item = value.get_item(&key)?;
                pairs.push((key, item));
            }
        }
        Some(value) => {
            for pair in value.try_iter()? {
                if pair.len() != Some(2) {
                    return Err(invalid("dict() takes pairs"));
                }
                pairs.push((pair.get_item_by_index(0)?, pair.get_item_by_index(1)?));
            }
        }
    }
    for name in options.args() {
        pairs.push((Value::from(name), options.get(name)?));
    }
    weighed(state, Value::from_pairs(pairs))
}

pub fn namespace(state: &State, value: Option<Value>, options: Kwargs) -> Result<Value, Error> {
    functions::namespace(Some(dict(state, value, options)?.into()))
}

/// What has a length and items by place or key; a text and a dict too, as in Python.
pub fn is_sequence(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Map => true,
        ValueKind::Iterable => value.len().is_some(),
        _ => false,
    }
}

/// `int` and `float` as Jinja has them: what cannot be converted becomes the default.
pub fn int(
    state: &State,
    value: &Value,
    default: Option<Value>,
    base: Option<u32>,
    options: Kwargs,
) -> Result<Value, Error> {
    if value.is_undefined() {
        return Err(ErrorKind::UndefinedError.into());
    }
    let default = match default {
        Some(default) => default,
        None => options.get::<Option<Value>>("default")?.unwrap_or_else(|| Value::from(0)),
    };
    Ok(filters::int(state, value, Some(default.clone()), base, options).unwrap_or(default))
}

pub fn float(value: &Value, default: Option<Value>) -> Result<Value, Error> {
    if value.is_undefined() {
        return Err(ErrorKind::UndefinedError.into());
    }
    let number = match value.kind() {
        ValueKind::String => value.as_str().and_then(|text| text.trim().parse::<f64>().ok()),
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        _ => f64::try_from(value.clone()).ok(),
    };
    Ok(number.map_or_else(|| default.unwrap_or_else(|| Value::from(0.0)), Value::from))
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
    for arg in args {
        weigh(state, arg)?;
    }
    if let Some(text) = value.as_str() {
        if let Some(result) = strings::method(state, text, method, args)? {
            return Ok(result);
        }
    }
    if let (Some(text), "format") = (value.as_str(), method) {
        charge_str_format(state, text, args)?;
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
