//! Before compiling: what a template's source says in Python's way and minijinja reads in another.
//!
//! Only tags are looked at, never text. Their sizes are checked first, because the compiler's time and
//! stack grow with an expression and fuel does not cover them. Then
//!
//!     {% generation %} … {% endgeneration %}   becomes a block without effect (it marks training's tokens)
//!     {% for x in EXPRESSION %}                 EXPRESSION passes through the filter `_iterate`: None may not
//!                                               be iterated, and `1, 2` is a tuple
//!     A ~ B                                     A and B pass through `_text`: str() as Python has it
//!     '…' % B                                   becomes `'…' | _printf(B)`
//!     A + B                                     without quoted text A and B pass through `_addend`: they may be
//!                                               lists, whose concatenation minijinja does not charge for
//!     A[1:]                                     A passes through `_settled`: slices of slices are chains
//!     [A], (A, B), {'a': A}                     pass through `_weighed`, unless they hold only constants: values
//!                                               that hold one another twice cost their size to compare
//!     "\U0001F600", "\a", "\v", "\/"           become what Python takes them for
//!
//! A tag in which nothing of this occurs, or that cannot be taken apart, is left as it is: the compiler
//! says what is wrong with it.

use std::iter::Peekable;
use std::slice::Iter;

use crate::mark::{Marks, Way};

/// Operators in one tag. Real templates stay below 50; compiling is quadratic in it.
const OPERATORS_MAX: usize = 500;
const WORDS_MAX: usize = 2000;

/// Err: a sentence. `marks`: the template's own control tokens become marks, see mark.rs.
pub fn prepare(source: &str, marks: Option<(&Marks, Way)>) -> Result<String, &'static str> {
    let mut out = String::with_capacity(source.len());
    let mut data = String::new();
    let flush = |data: &mut String, out: &mut String| {
        match marks {
            Some((marks, way)) => out.push_str(&marks.data(data, way)),
            None => out.push_str(data),
        }
        data.clear();
    };
    let mut rest = source;
    while let Some(start) = rest.find('{') {
        let (before, tag) = rest.split_at(start);
        data.push_str(before);
        let close = match tag.as_bytes().get(1) {
            Some(b'%') => "%}",
            Some(b'{') => "}}",
            Some(b'#') => "#}",
            _ => {
                data.push('{');
                rest = &tag[1..];
                continue;
            }
        };
        let (whole, after) = tag.split_at(tag_length(tag, close));
        rest = after;
        flush(&mut data, &mut out);
        if close == "#}" {
            out.push_str(whole);
            continue;
        }
        check_operators(whole)?;
        match marks.zip(tag_parts(whole)) {
            Some(((marks, way), (open, inner, close))) => {
                let inner = marks.tag(inner, way);
                out.push_str(&rewrite_tag(&format!("{open}{inner}{close}")));
            }
            None => out.push_str(&rewrite_tag(whole)),
        }
        if close == "%}" && statement_name(whole) == "raw" {
            let (verbatim, after) = rest.split_at(raw_length(rest));
            data.push_str(verbatim);
            flush(&mut data, &mut out);
            rest = after;
        }
    }
    data.push_str(rest);
    flush(&mut data, &mut out);
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

/// The text of a raw block, up to its end's tag.
fn raw_length(text: &str) -> usize {
    let mut from = 0;
    while let Some(at) = text[from..].find("{%") {
        let tag = &text[from + at..];
        if statement_name(&tag[..tag_length(tag, "%}")]) == "endraw" {
            return from + at;
        }
        from += at + 2;
    }
    text.len()
}

/// Counts operators, and words by the space between them, outside quoted text.
fn check_operators(tag: &str) -> Result<(), &'static str> {
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
        return Err("an expression is too long");
    }
    Ok(())
}

/// What stands between the marks, and the marks themselves with their signs for white space.
fn tag_parts(tag: &str) -> Option<(&str, &str, &str)> {
    let bytes = tag.as_bytes();
    if bytes.len() < 4 || !(tag.ends_with("%}") || tag.ends_with("}}")) {
        return None;
    }
    let sign = |byte: u8| byte == b'-' || byte == b'+';
    let open = if sign(bytes[2]) { 3 } else { 2 };
    let end = bytes.len() - 2;
    let close = if end > open && sign(bytes[end - 1]) { end - 1 } else { end };
    (open <= close).then(|| (&tag[..open], &tag[open..close], &tag[close..]))
}

fn statement_name(tag: &str) -> &str {
    let inner = tag_parts(tag).map_or("", |(_, inner, _)| inner).trim_start();
    let end = inner.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(inner.len());
    &inner[..end]
}

fn rewrite_tag(tag: &str) -> String {
    let Some((open, inner, close)) = tag_parts(tag) else {
        return tag.to_string();
    };
    let name = if open.starts_with("{%") { statement_name(tag) } else { "" };
    let rewritten = match name {
        "generation" if inner.trim() == name => Some(" if true ".to_string()),
        "endgeneration" if inner.trim() == name => Some(" endif ".to_string()),
        "for" => rewrite_for(inner),
        "set" if inner.contains(',') => rewrite_set(inner),
        _ if inner.contains(['~', '%', '\\', '+', '[', '(', '{']) => {
            // A statement's name is no operand: `elif a ~ b`.
            let (before, rest) = inner.split_at(inner.find(name).unwrap_or(0) + name.len());
            tokens_of(rest)
                .and_then(|tokens| rewrite_expression(&tokens))
                .map(|rest| format!("{before}{rest}"))
        }
        _ => None,
    };
    rewritten.map_or_else(|| tag.to_string(), |inner| format!("{open}{inner}{close}"))
}

// ---- Expressions.

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Space,
    Word, // a name, a keyword or a number
    Text, // quoted
    Sign,
}

#[derive(Clone, Debug)]
pub struct Token {
    pub kind: Kind,
    pub text: String,
}

const LONG_SIGNS: [&str; 6] = ["**", "//", "==", "!=", "<=", ">="];

/// None when a quoted text does not end.
pub fn tokens_of(source: &str) -> Option<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let end_of = |part: fn(char) -> bool| rest.find(|c| !part(c)).unwrap_or(rest.len());
        let word = |c: char| c.is_alphanumeric() || c == '_';
        let (kind, length) = if first.is_whitespace() {
            (Kind::Space, end_of(char::is_whitespace))
        } else if first.is_ascii_digit() {
            (Kind::Word, number_length(rest))
        } else if word(first) {
            (Kind::Word, end_of(word))
        } else if first == '\'' || first == '"' {
            (Kind::Text, quoted_length(rest)?)
        } else if LONG_SIGNS.iter().any(|sign| rest.starts_with(sign)) {
            (Kind::Sign, 2)
        } else {
            (Kind::Sign, first.len_utf8())
        };
        let (text, after) = rest.split_at(length);
        let text = if kind == Kind::Text { with_characters(text) } else { text.to_string() };
        tokens.push(Token { kind, text });
        rest = after;
    }
    Some(tokens)
}

/// 12, 0x1f, 1_000, 1.5, 1e-5; not the dot of 1.real.
fn number_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let at = |i: usize| bytes.get(i).copied().unwrap_or(0);
    let decimal = !matches!(at(1), b'x' | b'X' | b'b' | b'B' | b'o' | b'O');
    let mut i = 1;
    loop {
        let exponent = decimal && matches!(at(i - 1), b'e' | b'E') && matches!(at(i), b'+' | b'-');
        let point = decimal && at(i) == b'.' && at(i + 1).is_ascii_digit();
        if !exponent && !point && !at(i).is_ascii_alphanumeric() && at(i) != b'_' {
            return i;
        }
        i += 1;
    }
}

fn quoted_length(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut i = 1;
    while i < bytes.len() {
        match bytes[i] {
            b'\\' => i += 1,
            byte if byte == bytes[0] => return Some(i + 1),
            _ => {}
        }
        i += 1;
    }
    None
}

/// Quoted text whose escapes mean in minijinja what they mean in Python.
fn with_characters(quoted: &str) -> String {
    let mut out = String::new();
    let mut rest = quoted;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let escape = &rest[at + 1..];
        let character = escape
            .strip_prefix('U')
            .and_then(|digits| u32::from_str_radix(digits.get(..8)?, 16).ok())
            .and_then(char::from_u32)
            .filter(|c| !"\\'\"".contains(*c));
        let length = match (character, escape.chars().next()) {
            (Some(_), _) => 9,
            (None, first) => first.map_or(0, char::len_utf8),
        };
        match (character, &escape[..length]) {
            (Some(c), _) => out.push(c),
            (None, "a") => out.push_str("\\x07"),
            (None, "v") => out.push_str("\\x0b"),
            (None, "/") => out.push_str("\\\\/"),
            (None, other) => {
                out.push('\\');
                out.push_str(other);
            }
        }
        rest = &escape[length..];
    }
    out.push_str(rest);
    out
}

/// The characters of a quoted text, each with how it is written.
pub fn quoted_units(quoted: &str) -> Vec<(char, &str)> {
    let mut units = Vec::new();
    let mut rest = &quoted[1..quoted.len() - 1];
    while let Some(first) = rest.chars().next() {
        let (c, length) = match rest[first.len_utf8()..].chars().next() {
            Some(escape) if first == '\\' => escaped(&rest[1..], escape),
            _ => (first, first.len_utf8()),
        };
        let (source, after) = rest.split_at(length);
        units.push((c, source));
        rest = after;
    }
    units
}

/// A character written as an escape, and the length of that with its backslash.
fn escaped(rest: &str, escape: char) -> (char, usize) {
    let digits = match escape {
        'x' => 2,
        'u' => 4,
        'U' => 8,
        _ => 0,
    };
    let code = rest.get(1..1 + digits).and_then(|hex| u32::from_str_radix(hex, 16).ok());
    match (escape, code.and_then(char::from_u32)) {
        ('x' | 'u' | 'U', Some(c)) => (c, 2 + digits),
        ('n', _) => ('\n', 2),
        ('t', _) => ('\t', 2),
        ('r', _) => ('\r', 2),
        _ => (escape, 1 + escape.len_utf8()),
    }
}

/// `for TARGETS in ITERABLE [if …] [recursive]`.
fn rewrite_for(inner: &str) -> Option<String> {
    let tokens = tokens_of(inner)?;
    let word_at = |from: usize, words: &[&str]| {
        let mut depth = 0;
        tokens.iter().enumerate().skip(from).find_map(|(i, token)| {
            match token.text.as_str() {
                "(" | "[" | "{" if token.kind == Kind::Sign => depth += 1,
                ")" | "]" | "}" if token.kind == Kind::Sign => depth -= 1,
                text if depth == 0 && token.kind == Kind::Word && words.contains(&text) => {
                    return Some(i);
                }
                _ => {}
            }
            None
        })
    };
    let start = word_at(0, &["in"])? + 1;
    let last = word_at(start, &["recursive"]).unwrap_or(tokens.len());
    let end = word_at(start, &["if"]).unwrap_or(last).min(last);
    let text = |part: &[Token]| part.iter().map(|token| token.text.as_str()).collect::<String>();
    let iterable = rewrite_expression(&tokens[start..end])?;
    if iterable.trim().is_empty() {
        return None;
    }
    let condition = rewrite_expression(&tokens[end..last])?;
    let targets = text(&tokens[..start]);
    Some(format!(
        "{targets} {}{condition}{}",
        filtered(&iterable, "_iterate "),
        text(&tokens[last..])
    ))
}

/// `set TARGETS = VALUE`, whose value may be a tuple without brackets.
fn rewrite_set(inner: &str) -> Option<String> {
    let tokens = tokens_of(inner)?;
    let sign = tokens.iter().position(|token| token.kind == Kind::Sign && token.text == "=")? + 1;
    let targets: String = tokens[..sign].iter().map(|token| token.text.as_str()).collect();
    let mut rest = tokens[sign..].iter().peekable();
    let value = rewrite_level(&mut rest, None)?;
    if rest.next().is_some() {
        return None;
    }
    let tuple = value.comma && value.names;
    Some(format!("{targets}{}", if tuple { filtered(&value.text, "_weighed") } else { value.text }))
}

/// The expression through a filter, the space around it kept: it holds line ends.
fn filtered(expression: &str, filter: &str) -> String {
    let inner = expression.trim();
    if inner.is_empty() {
        return expression.to_string(); // for the compiler to refuse
    }
    let start = expression.len() - expression.trim_start().len();
    let (before, after) = (&expression[..start], &expression[start + inner.len()..]);
    format!("{before}({inner})|{filter}{after}")
}

/// None when brackets do not match.
fn rewrite_expression(tokens: &[Token]) -> Option<String> {
    let mut tokens = tokens.iter().peekable();
    let inside = rewrite_level(&mut tokens, None)?;
    tokens.next().is_none().then_some(inside.text)
}

/// What stands in a pair of brackets, rewritten.
#[derive(Default)]
struct Inside {
    text: String,
    comma: bool,
    colon: bool,
    names: bool, // anything but constants
}

/// Operands of one bracket's inside, of rising strength: what `~` joins, what `* / // %` chain.
#[derive(Default)]
struct Level {
    out: String,
    sum: Vec<String>, // terms and the signs between them, in turn
    joined: Vec<String>,
    chain: String,
    percent: bool, // between `chain` and `operand`
    operand: String,
}

impl Level {
    fn end_operand(&mut self) {
        let operand = std::mem::take(&mut self.operand);
        if std::mem::take(&mut self.percent) {
            if self.chain.trim_start().starts_with(['\'', '"']) {
                self.chain = filtered(&self.chain, &format!("_printf({operand})"));
                return;
            }
            self.chain.push('%');
        }
        self.chain.push_str(&operand);
    }

    fn end_joined(&mut self) {
        self.end_operand();
        self.joined.push(std::mem::take(&mut self.chain));
    }

    fn end_term(&mut self) {
        self.end_joined();
        let joined = std::mem::take(&mut self.joined);
        if let [only] = joined.as_slice() {
            self.sum.push(only.clone());
            return;
        }
        let texts: Vec<String> = joined.iter().map(|part| filtered(part, "_text")).collect();
        self.sum.push(texts.join("~"));
    }

    /// Texts are charged for when they are added: one quoted term says that all are texts.
    fn end_all(&mut self) {
        self.end_term();
        let sum = std::mem::take(&mut self.sum);
        let quoted = |term: &String| term.trim_start().starts_with(['\'', '"']);
        let lists = !sum.iter().step_by(2).any(quoted);
        for (i, part) in sum.iter().enumerate() {
            let beside = |at: usize| sum.get(at).is_some_and(|sign| sign == "+");
            if lists && i % 2 == 0 && (beside(i + 1) || (i > 0 && beside(i - 1))) {
                self.out.push_str(&filtered(part, "_addend"));
            } else {
                self.out.push_str(part);
            }
        }
    }

    /// A bracket and what is in it, behind the operand so far.
    fn push_bracket(&mut self, open: &str, inside: &Inside, close: &str, postfix: bool) {
        let text = format!("{open}{}{close}", inside.text);
        let operand = self.operand.trim_start().to_string();
        if postfix && open == "[" && inside.colon {
            let plain = !operand.starts_with('-') && !operand.contains(['|', '*']);
            if plain && !operand.is_empty() && !operand.contains(char::is_whitespace) {
                let blank = self.operand.len() - operand.len();
                let settled = format!("({})", filtered(&operand, "_settled"));
                self.operand.replace_range(blank.., &settled);
            }
        }
        let tuple = open == "(" && inside.comma;
        if !postfix && inside.names && (open != "(" || tuple) {
            self.operand.push_str(&format!("({})", filtered(&text, "_weighed")));
        } else {
            self.operand.push_str(&text);
        }
    }
}

/// Up to the bracket that closes this level, which the caller takes.
fn rewrite_level(tokens: &mut Peekable<Iter<Token>>, close: Option<&str>) -> Option<Inside> {
    let mut level = Level::default();
    let mut found = Inside::default();
    let (mut before, mut before_that) = (String::new(), String::new());
    loop {
        let text = tokens.peek().map_or("", |token| token.text.as_str());
        let ends = |token: &&Token| token.kind == Kind::Sign && [")", "]", "}"].contains(&text);
        if tokens.peek().is_none_or(|token| ends(token)) {
            level.end_all();
            found.text = level.out;
            return (close.unwrap_or("") == text).then_some(found);
        }
        let token = tokens.next()?;
        let mut last = text;
        found.comma |= token.kind == Kind::Sign && text == ",";
        found.colon |= token.kind == Kind::Sign && text == ":";
        found.names |= token.kind == Kind::Word && !is_constant(text);
        match (token.kind, text) {
            (Kind::Space | Kind::Text, _) => level.operand.push_str(text),
            (Kind::Sign, "(" | "[" | "{") => {
                let end = [")", "]", "}"][["(", "[", "{"].iter().position(|open| *open == text)?];
                let inside = rewrite_level(tokens, Some(end))?;
                tokens.next()?;
                found.names |= inside.names;
                level.push_bracket(text, &inside, end, ends_value(&before, &before_that));
                last = end;
            }
            (Kind::Sign, "~") => level.end_joined(),
            (Kind::Sign, "%") => {
                level.end_operand();
                level.percent = true;
            }
            (Kind::Sign, "*" | "/" | "//") => {
                level.end_operand();
                level.chain.push_str(text);
            }
            (Kind::Sign, "+" | "-") if ends_operand(token, &before, &before_that) => {
                level.end_term();
                level.sum.push(text.to_string());
            }
            _ if ends_operand(token, &before, &before_that) => {
                level.end_all();
                level.out.push_str(text);
            }
            _ => level.operand.push_str(text),
        }
        if token.kind != Kind::Space {
            before_that = std::mem::replace(&mut before, last.to_string());
        }
    }
}

fn is_constant(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit())
        || ["true", "false", "none", "True", "False", "None"].contains(&word)
}

/// Whether what stands before a bracket is what it is applied to, and not the beginning of a new value.
fn ends_value(before: &str, before_that: &str) -> bool {
    let value = |c: char| c.is_alphanumeric() || "_)]}'\"".contains(c);
    before.ends_with(value) && (before_that == "." || !WORDS.contains(&before))
}

const WORDS: [&str; 6] = ["and", "or", "not", "in", "if", "else"];

/// Whether what follows is an operand of something weaker than `~`. `is`, `|` and `.` bind stronger, and
/// so do the words after them; a sign after another sign is one operand's own.
fn ends_operand(token: &Token, before: &str, before_that: &str) -> bool {
    let after_is = before == "is" || (before == "not" && before_that == "is");
    match token.text.as_str() {
        text if WORDS.contains(&text) => !after_is && before != "." && before != "|",
        "+" | "-" => {
            ends_value(before, before_that)
        }
        "==" | "!=" | "<" | "<=" | ">" | ">=" | "=" | "," | ":" => true,
        _ => false,
    }
}
