//! Methods of str that minijinja-contrib's pycompat does not have or does in another way. After the Python 3
//! library reference ("Text Sequence Type").

use minijinja::value::{from_args, Kwargs, Tuple};
use minijinja::{Error, State, Value};

use crate::python::{invalid, is_space};

/// None: not one of these.
pub fn method(
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
        "strip" | "lstrip" | "rstrip" => {
            let (characters,): (Option<&str>,) = from_args(args)?;
            Value::from(strip(text, characters, method != "rstrip", method != "lstrip"))
        }
        "split" | "rsplit" => split(state, text, method == "rsplit", args)?,
        "splitlines" => {
            let (keep, options): (Option<bool>, Kwargs) = from_args(args)?;
            let keep = keep.or(options.get("keepends")?).unwrap_or(false);
            options.assert_all_used()?;
            lines(state, text, keep)?.into_iter().map(Value::from).collect()
        }
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
        "find" | "rfind" | "index" | "rindex" => find(text, method, args)?,
        "count" => {
            let (what, start, end): (&str, Option<i64>, Option<i64>) = from_args(args)?;
            let part = slice(text, start, end).map_or("", |(_, part)| part);
            let count =
                if what.is_empty() { part.chars().count() + 1 } else { part.matches(what).count() };
            Value::from(count)
        }
        "startswith" | "endswith" => {
            let (what, start, end): (&Value, Option<i64>, Option<i64>) = from_args(args)?;
            Value::from(begins(text, method == "endswith", what, start, end)?)
        }
        "title" => {
            let () = from_args(args)?;
            Value::from(title(text))
        }
        "casefold" => {
            let () = from_args(args)?;
            Value::from(text.to_lowercase().replace('ß', "ss").replace('ς', "σ"))
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
        "expandtabs" => {
            let (size, options): (Option<usize>, Kwargs) = from_args(args)?;
            let size = size.or(options.get("tabsize")?).unwrap_or(8);
            options.assert_all_used()?;
            Value::from(expand_tabs(state, text, size)?)
        }
        "isspace" | "isdigit" | "isdecimal" | "istitle" | "isidentifier" => {
            let () = from_args(args)?;
            Value::from(has_property(text, method))
        }
        _ => return Ok(None),
    };
    Ok(Some(result))
}

pub fn strip<'a>(text: &'a str, characters: Option<&str>, left: bool, right: bool) -> &'a str {
    let drop = |c: char| characters.map_or_else(|| is_space(c), |set| set.contains(c));
    let text = if left { text.trim_start_matches(drop) } else { text };
    if right {
        text.trim_end_matches(drop)
    } else {
        text
    }
}

/// str.splitlines: more ends than \n, and none after the last.
pub fn lines<'a>(state: &State, text: &'a str, keep: bool) -> Result<Vec<&'a str>, Error> {
    let ends = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    charge_parts(state, text.matches(ends).count())?;
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(ends) {
        let end = if rest[at..].starts_with("\r\n") {
            2
        } else {
            rest[at..].chars().next().map_or(1, char::len_utf8)
        };
        found.push(&rest[..if keep { at + end } else { at }]);
        rest = &rest[at + end..];
    }
    if !rest.is_empty() {
        found.push(rest);
    }
    Ok(found)
}

/// Parts of a text are charged before they are made: a short one takes as much as a long one.
fn charge_parts(state: &State, count: usize) -> Result<(), Error> {
    state.consume_fuel(1 + count as u64)
}

fn split(state: &State, text: &str, from_right: bool, args: &[Value]) -> Result<Value, Error> {
    let (separator, limit, options): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = separator.or(options.get("sep")?).filter(|value| !value.is_none());
    let limit = match limit.or(options.get("maxsplit")?) {
        Some(count) if count >= 0 => count as usize,
        _ => usize::MAX - 1,
    };
    options.assert_all_used()?;
    let Some(separator) = separator else {
        charge_parts(state, text.split(is_space).take(limit).count())?;
        return Ok(split_words(text, from_right, limit).into_iter().map(Value::from).collect());
    };
    let separator =
        separator.as_str().ok_or_else(|| invalid("the separator must be a str or None"))?;
    if separator.is_empty() {
        return Err(invalid("empty separator"));
    }
    charge_parts(state, text.matches(separator).take(limit).count())?;
    let parts: Vec<&str> = if from_right {
        let mut parts: Vec<&str> = text.rsplitn(limit + 1, separator).collect();
        parts.reverse();
        parts
    } else {
        text.splitn(limit + 1, separator).collect()
    };
    Ok(parts.into_iter().map(Value::from).collect())
}

fn split_words(text: &str, from_right: bool, limit: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = strip(text, None, !from_right, from_right);
    while !rest.is_empty() && parts.len() < limit {
        if from_right {
            let at = rest
                .rfind(is_space)
                .map_or(0, |at| at + rest[at..].chars().next().map_or(0, char::len_utf8));
            parts.push(&rest[at..]);
            rest = strip(&rest[..at], None, false, true);
        } else {
            let at = rest.find(is_space).unwrap_or(rest.len());
            parts.push(&rest[..at]);
            rest = strip(&rest[at..], None, true, false);
        }
    }
    if !rest.is_empty() {
        parts.push(rest);
    }
    if from_right {
        parts.reverse();
    }
    parts
}

/// text[start:end] and its first character's place; None when start lies behind the end of the text.
fn slice(text: &str, start: Option<i64>, end: Option<i64>) -> Option<(usize, &str)> {
    let count = text.chars().count() as i64;
    let place = |index: i64| if index < 0 { (index + count).max(0) } else { index };
    let (start, end) = (place(start.unwrap_or(0)), place(end.unwrap_or(count)).min(count));
    if start > end {
        return None;
    }
    let offset =
        |index: i64| text.char_indices().nth(index as usize).map_or(text.len(), |(at, _)| at);
    Some((start as usize, &text[offset(start)..offset(end)]))
}

fn find(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let (what, start, end): (&str, Option<i64>, Option<i64>) = from_args(args)?;
    let found = slice(text, start, end).and_then(|(first, part)| {
        let at = if method.starts_with('r') { part.rfind(what) } else { part.find(what) };
        at.map(|at| first + part[..at].chars().count())
    });
    match found {
        Some(place) => Ok(Value::from(place)),
        None if method.ends_with("index") => Err(invalid("substring not found")),
        None => Ok(Value::from(-1)),
    }
}

fn begins(
    text: &str,
    at_end: bool,
    what: &Value,
    start: Option<i64>,
    end: Option<i64>,
) -> Result<bool, Error> {
    let Some((_, part)) = slice(text, start, end) else {
        return Ok(false);
    };
    let one = |what: &Value| -> Result<bool, Error> {
        let what =
            what.as_str().ok_or_else(|| invalid("the argument must be str or a tuple of str"))?;
        Ok(if at_end { part.ends_with(what) } else { part.starts_with(what) })
    };
    if !what.is_tuple() {
        return one(what);
    }
    for item in what.try_iter()? {
        if one(&item)? {
            return Ok(true);
        }
    }
    Ok(false)
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

pub fn justify(state: &State, text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
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

/// A word starts after anything without case: "it's" becomes "It'S".
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for c in text.chars() {
        if inside {
            out.extend(c.to_lowercase());
        } else {
            match c {
                'Ǆ'..='ǆ' => out.push('ǅ'),
                'Ǉ'..='ǉ' => out.push('ǈ'),
                'Ǌ'..='ǌ' => out.push('ǋ'),
                'Ǳ'..='ǳ' => out.push('ǲ'),
                c => {
                    let mut upper = c.to_uppercase();
                    out.extend(upper.next());
                    out.extend(upper.flat_map(char::to_lowercase));
                }
            }
        }
        inside = has_case(c);
    }
    out
}

fn has_case(c: char) -> bool {
    c.is_lowercase() || c.is_uppercase() || matches!(c, 'ǅ' | 'ǈ' | 'ǋ' | 'ǲ')
}

fn expand_tabs(state: &State, text: &str, size: usize) -> Result<String, Error> {
    let mut out = String::with_capacity(text.len());
    let mut column = 0;
    for c in text.chars() {
        match c {
            '\t' if size > 0 => {
                let missing = size - column % size;
                state.consume_fuel(missing as u64)?;
                out.extend(std::iter::repeat_n(' ', missing));
                column += missing;
            }
            '\t' => {}
            c => {
                out.push(c);
                column = if c == '\n' || c == '\r' { 0 } else { column + 1 };
            }
        }
    }
    Ok(out)
}

/// The superscripts and circled digits that str.isdigit counts beside decimal digits.
fn is_digit(c: char) -> bool {
    is_decimal(c)
        || matches!(c, '²' | '³' | '¹' | '⁰' | '⁴'..='⁹' | '₀'..='₉' | '①'..='⑨' | '⑴'..='⑼' | '⒈'..='⒐' | '⓪'
            | '⓵'..='⓽' | '⓿' | '❶'..='❾' | '➀'..='➈' | '➊'..='➒')
}

/// Digits that stand in a row of ten, by the first of each row in the Basic Multilingual Plane.
fn is_decimal(c: char) -> bool {
    const ZEROS: [u32; 37] = [
        0x30, 0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66,
        0xde6, 0xe50, 0xed0, 0xf20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90,
        0x1b50, 0x1bb0, 0x1c40, 0x1c50, 0xa620, 0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0,
        0xff10,
    ];
    ZEROS.iter().any(|zero| (*zero..zero + 10).contains(&(c as u32)))
}

fn has_property(text: &str, method: &str) -> bool {
    let mut characters = text.chars();
    match method {
        _ if text.is_empty() => false,
        "isspace" => characters.all(is_space),
        "isdigit" => characters.all(is_digit),
        "isdecimal" => characters.all(is_decimal),
        "istitle" => text == title(text) && characters.any(has_case),
        _ => {
            let first = text.chars().next().is_some_and(|c| c == '_' || c.is_alphabetic());
            first && characters.all(|c| c == '_' || c.is_alphanumeric())
        }
    }
}
