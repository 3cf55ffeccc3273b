//! Translates llama.cpp's grammar notation (GBNF: `root ::= …`) into llguidance's Lark.
//!
//! Read: rules, alternatives, groups, strings, character classes, `.`, `* + ? {m} {m,} {m,n}`, comments.
//! Refused by name: token matches (`<…>`), rules that are missing or doubled, a grammar without `root`.
//! Notation: the grammars/README of llama.cpp; rule names become `r0`, `r1` …, so that any name may be used.

use std::collections::HashMap;
use std::fmt::Write;

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
    names: HashMap<String, usize>,
    defined: Vec<bool>,
}

type Result<T> = std::result::Result<T, String>;

const MAX_DEPTH: usize = 64;

/// Whether the text is in this notation: a name and `::=` stand first.
pub fn is_gbnf(source: &str) -> bool {
    let mut reader = Reader::new(source);
    reader.skip_lines();
    reader.name().is_some() && {
        reader.skip_blanks();
        reader.take(b"::=")
    }
}

pub fn to_lark(source: &str) -> Result<String> {
    let mut reader = Reader::new(source);
    let mut out = String::new();
    reader.skip_lines();
    while reader.at < reader.text.len() {
        reader.rule(&mut out)?;
        reader.skip_lines();
    }
    let Some(&root) = reader.names.get("root") else {
        return Err("the grammar has no rule `root`".into());
    };
    for (name, &index) in &reader.names {
        if !reader.defined[index] {
            return Err(format!("the rule `{}` is not defined", cut(name)));
        }
    }
    Ok(format!("start: r{root}\n{out}"))
}

fn cut(name: &str) -> String {
    name.chars().take(40).collect()
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'
}

impl<'a> Reader<'a> {
    fn new(source: &'a str) -> Reader<'a> {
        Reader { text: source.as_bytes(), at: 0, names: HashMap::new(), defined: Vec::new() }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn take(&mut self, word: &[u8]) -> bool {
        let found = self.text[self.at..].starts_with(word);
        if found {
            self.at += word.len();
        }
        found
    }

    fn line(&self) -> usize {
        1 + self.text[..self.at].iter().filter(|&&byte| byte == b'\n').count()
    }

    fn fail<T>(&self, what: &str) -> Result<T> {
        Err(format!("line {}: {what}", self.line()))
    }

    fn skip_comment(&mut self) {
        if self.peek() == Some(b'#') {
            while self.peek().is_some_and(|byte| byte != b'\n') {
                self.at += 1;
            }
        }
    }

    /// Blanks and comments of this line.
    fn skip_blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r')) {
            self.at += 1;
        }
        self.skip_comment();
    }

    fn skip_lines(&mut self) {
        loop {
            self.skip_blanks();
            if self.peek() != Some(b'\n') {
                return;
            }
            self.at += 1;
        }
    }

    fn name(&mut self) -> Option<String> {
        let start = self.at;
        while self.peek().is_some_and(is_name) {
            self.at += 1;
        }
        (self.at > start).then(|| String::from_utf8_lossy(&self.text[start..self.at]).into_owned())
    }

    fn index_of(&mut self, name: String) -> usize {
        let next = self.names.len();
        let index = *self.names.entry(name).or_insert(next);
        if index == next {
            self.defined.push(false);
        }
        index
    }

    fn rule(&mut self, out: &mut String) -> Result<()> {
        let Some(name) = self.name() else {
            return self.fail("a rule begins with its name");
        };
        let shown = cut(&name);
        let index = self.index_of(name);
        self.skip_blanks();
        if !self.take(b"::=") {
            return self.fail("`::=` follows a rule's name");
        }
        if std::mem::replace(&mut self.defined[index], true) {
            return self.fail(&format!("the rule `{shown}` is defined twice"));
        }
        self.skip_lines();
        let mut body = String::new();
        self.alternatives(&mut body, 0)?;
        let _ = writeln!(out, "r{index}: {body}");
        if self.peek().is_some_and(|byte| byte != b'\n') {
            return self.fail("unexpected text behind a rule");
        }
        Ok(())
    }

    fn alternatives(&mut self, out: &mut String, depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return self.fail("groups are nested too deep");
        }
        loop {
            self.sequence(out, depth)?;
            // An alternative may stand on a line of its own.
            let before = self.at;
            self.skip_lines();
            if !self.take(b"|") {
                if depth == 0 {
                    self.at = before;
                }
                return Ok(());
            }
            out.push_str(" | ");
            self.skip_lines();
        }
    }

    fn sequence(&mut self, out: &mut String, depth: usize) -> Result<()> {
        let start = out.len();
        loop {
            if depth > 0 {
                self.skip_lines();
            } else {
                self.skip_blanks();
            }
            if !self.element(out, depth)? {
                break;
            }
            out.push(' ');
        }
        if out.len() == start {
            out.push_str("\"\"");
        }
        Ok(())
    }

    fn element(&mut self, out: &mut String, depth: usize) -> Result<bool> {
        match self.peek() {
            Some(b'"') => self.string(out)?,
            Some(b'[') => self.class(out)?,
            Some(b'.') => {
                self.at += 1;
                out.push_str("/(?s:.)/");
            }
            Some(b'(') => {
                self.at += 1;
                out.push('(');
                self.skip_lines();
                self.alternatives(out, depth + 1)?;
                if !self.take(b")") {
                    return self.fail("`)` is missing");
                }
                out.push(')');
            }
            Some(b'<' | b'!') => return self.fail("matching tokens (`<…>`) is not supported"),
            Some(byte) if is_name(byte) => {
                let name = self.name().unwrap_or_default();
                let index = self.index_of(name);
                let _ = write!(out, "r{index}");
            }
            _ => return Ok(false),
        }
        self.repetition(out)?;
        Ok(true)
    }

    fn repetition(&mut self, out: &mut String) -> Result<()> {
        match self.peek() {
            Some(sign @ (b'*' | b'+' | b'?')) => {
                self.at += 1;
                out.push(sign as char);
            }
            Some(b'{') => {
                let end = self.text[self.at..].iter().position(|&byte| byte == b'}');
                let Some(end) = end else { return self.fail("`}` is missing") };
                let inner = String::from_utf8_lossy(&self.text[self.at + 1..self.at + end]);
                let inner: Vec<&str> = inner.split(',').map(str::trim).collect();
                let inner = inner.join(",");
                let number = |text: &str| text.is_empty() || text.parse::<u16>().is_ok();
                let (low, high) = inner.split_once(',').unwrap_or((&inner, &inner));
                if low.is_empty() || !number(low) || !number(high) {
                    return self.fail("a repetition is {m}, {m,} or {m,n} with numbers below 65,536");
                }
                let _ = write!(out, "{{{inner}}}");
                self.at += end + 1;
            }
            _ => {}
        }
        Ok(())
    }

    /// The character that begins here; the text is UTF-8.
    fn next_char(&self) -> Option<char> {
        let rest = &self.text[self.at..];
        let length = (1..=rest.len().min(4)).find(|&n| std::str::from_utf8(&rest[..n]).is_ok())?;
        std::str::from_utf8(&rest[..length]).ok()?.chars().next()
    }

    /// One character of a string or a class, escapes resolved.
    fn character(&mut self) -> Result<char> {
        let Some(first) = self.next_char() else { return self.fail("the grammar ends in a string or class") };
        self.at += first.len_utf8();
        if first == '\n' {
            return self.fail("a string or class ends on its line");
        }
        if first != '\\' {
            return Ok(first);
        }
        let Some(letter) = self.peek() else { return self.fail("the grammar ends in an escape") };
        self.at += 1;
        let digits = match letter {
            b'n' => return Ok('\n'),
            b'r' => return Ok('\r'),
            b't' => return Ok('\t'),
            b'x' => 2,
            b'u' => 4,
            b'U' => 8,
            b'\\' | b'"' | b'[' | b']' | b'-' | b'^' | b'/' | b'\'' => return Ok(letter as char),
            _ => return self.fail("unknown escape"),
        };
        let hex = self.text.get(self.at..self.at + digits).unwrap_or(&[]);
        let value = std::str::from_utf8(hex).ok().filter(|hex| hex.len() == digits).and_then(|hex| u32::from_str_radix(hex, 16).ok());
        self.at += digits;
        match value.and_then(char::from_u32) {
            Some(character) => Ok(character),
            None => self.fail("an escape names no character"),
        }
    }

    fn string(&mut self, out: &mut String) -> Result<()> {
        self.at += 1;
        let mut text = String::new();
        while self.peek() != Some(b'"') {
            text.push(self.character()?);
        }
        self.at += 1;
        out.push_str(&serde_json::Value::String(text).to_string());
        Ok(())
    }

    fn class(&mut self, out: &mut String) -> Result<()> {
        self.at += 1;
        out.push_str("/[");
        if self.take(b"^") {
            out.push('^');
        }
        let mut empty = true;
        while self.peek() != Some(b']') {
            empty = false;
            let low = self.character()?;
            let _ = write!(out, "\\u{{{:x}}}", low as u32);
            if self.peek() == Some(b'-') && self.text.get(self.at + 1) != Some(&b']') {
                self.at += 1;
                let high = self.character()?;
                if high < low {
                    return self.fail("a range of a class runs backwards");
                }
                let _ = write!(out, "-\\u{{{:x}}}", high as u32);
            }
        }
        if empty {
            return self.fail("a class names at least one character");
        }
        self.at += 1;
        out.push_str("]/");
        Ok(())
    }
}
