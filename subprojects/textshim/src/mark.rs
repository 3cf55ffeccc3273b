//! Which bytes of a rendering are a template's own control tokens, so that no user's text becomes one.
//!
//! A template is compiled a second time with the control tokens in its own text written in *marks*: one code point
//! of an unassigned plane for each character that occurs in a token. Rendered with the same context it must print
//! what the plain template prints, marks read back as characters; then every mark stands where the template's own
//! text has come out, however it was cut, joined or repeated on the way. What is no mark may come from a user.
//!
//!     source   {{ '<|im_start|>' + message.role }}      the user's content is never marked
//!     marked   {{ 'ABCDEFGHIJAB' + message.role }}      (each letter standing for a mark)
//!
//! Where a template compares (`'</s>' in content`, `content.split('</s>')`) its text stays plain, since users' text
//! is plain. There are three ways, of which each marks more; a template is rendered by as few as it needs:
//! `Whole` tokens; `Pieces` at the edges of its texts too (`'<|' + role + '|>'`); and `Words` inside of tokens,
//! the roles of messages with them.

use crate::rewrite::{quoted_units, tokens_of, Kind, Token};

const FIRST: u32 = 0xdd000;
/// Distinct characters of all tokens; some hundreds are usual, where tokens are words of many scripts.
const MOST: usize = 0x2000;

#[derive(Clone, Copy, PartialEq, PartialOrd)]
pub enum Way {
    Whole = 0,
    Pieces = 1,
    Words = 2,
}

pub const WAYS: [Way; 3] = [Way::Whole, Way::Pieces, Way::Words];

/// The character that a mark stands for is found in `alphabet`.
pub struct Marks {
    alphabet: Vec<char>,       // sorted
    forward: Vec<Vec<char>>,   // tokens, sorted
    backward: Vec<Vec<char>>,  // the same read from their ends, sorted
    longest: usize,
    inside: String,            // all tokens, apart from one another
}

pub fn is_mark(c: char) -> bool {
    (FIRST..FIRST + MOST as u32).contains(&(c as u32))
}

/// How far a text, read from `from` on, agrees with tokens: the lengths of whole ones, and whether it ends
/// inside of one.
fn walk(tokens: &[Vec<char>], text: impl Iterator<Item = char>) -> (Vec<usize>, bool) {
    let (mut low, mut high) = (0, tokens.len());
    let mut whole = Vec::new();
    let mut depth = 0;
    for c in text {
        let range = &tokens[low..high];
        let start = range.partition_point(|token| token.get(depth) < Some(&c));
        let end = range.partition_point(|token| token.get(depth) <= Some(&c));
        (low, high) = (low + start, low + end);
        depth += 1;
        if low == high {
            return (whole, false);
        }
        if tokens[low].len() == depth {
            whole.push(depth);
        }
    }
    (whole, depth > 0 && tokens[low..high].iter().any(|token| token.len() > depth))
}

impl Marks {
    /// None when they have too many characters to be told apart.
    pub fn new(texts: &[&str]) -> Option<Marks> {
        let mut alphabet: Vec<char> = texts.iter().flat_map(|text| text.chars()).collect();
        alphabet.sort_unstable();
        alphabet.dedup();
        let mut forward: Vec<Vec<char>> = texts.iter().map(|text| text.chars().collect()).collect();
        forward.retain(|token| !token.is_empty());
        forward.sort_unstable();
        forward.dedup();
        let mut backward: Vec<Vec<char>> =
            forward.iter().map(|token| token.iter().rev().copied().collect()).collect();
        backward.sort_unstable();
        let longest = forward.iter().map(Vec::len).max().unwrap_or(0);
        let fits = alphabet.len() <= MOST;
        fits.then(|| Marks { alphabet, forward, backward, longest, inside: texts.join("\0") })
    }

    fn mark(&self, c: char) -> char {
        let at = self.alphabet.binary_search(&c).ok();
        at.and_then(|at| char::from_u32(FIRST + at as u32)).unwrap_or(c)
    }

    /// The character of a mark.
    pub fn plain(&self, c: char) -> Option<char> {
        self.alphabet.get((c as u32).checked_sub(FIRST)? as usize).copied()
    }

    /// Whether all of a text stands inside of a token.
    fn is_word(&self, text: &str) -> bool {
        !text.is_empty() && self.inside.contains(text)
    }

    /// A value that is compared as a whole, such as a role.
    pub fn word(&self, text: &str, way: Way) -> Option<String> {
        (way == Way::Words && self.is_word(text)).then(|| text.chars().map(|c| self.mark(c)).collect())
    }

    fn places(&self, text: &[char], way: Way) -> Vec<bool> {
        let mut places = vec![false; text.len()];
        for from in 0..text.len() {
            let (whole, open) = walk(&self.forward, text[from..].iter().copied());
            let length = match whole.last() {
                _ if open && way >= Way::Pieces => text.len() - from,
                Some(length) => *length,
                None => continue,
            };
            places[from..from + length].fill(true);
        }
        if way >= Way::Pieces {
            for end in 1..=text.len().min(self.longest) {
                if walk(&self.backward, text[..end].iter().rev().copied()).1 {
                    places[..end].fill(true);
                }
            }
        }
        places
    }

    /// Text outside of tags, or a variable's.
    pub fn data(&self, text: &str, way: Way) -> String {
        let chars: Vec<char> = text.chars().collect();
        let places = self.places(&chars, way);
        chars.iter().zip(places).map(|(c, own)| if own { self.mark(*c) } else { *c }).collect()
    }

    /// A quoted text, with its quotes.
    fn quoted(&self, quoted: &str, way: Way, compared: Compared) -> String {
        let units = quoted_units(quoted);
        let chars: Vec<char> = units.iter().map(|(c, _)| *c).collect();
        let text: String = chars.iter().collect();
        let word = way == Way::Words && compared != Compared::Searched && self.is_word(&text);
        let places = match compared {
            _ if word => vec![true; chars.len()],
            Compared::No => self.places(&chars, way),
            _ => return quoted.to_string(),
        };
        let mut out = quoted[..1].to_string();
        for ((c, source), own) in units.iter().zip(places) {
            if own {
                out.push(self.mark(*c));
            } else {
                out.push_str(source);
            }
        }
        out.push_str(&quoted[quoted.len() - 1..]);
        out
    }

    /// What stands between a tag's marks.
    pub fn tag(&self, inner: &str, way: Way) -> String {
        let Some(tokens) = tokens_of(inner) else {
            return inner.to_string();
        };
        let solid: Vec<usize> =
            (0..tokens.len()).filter(|i| tokens[*i].kind != Kind::Space).collect();
        let mut out: Vec<String> = tokens.iter().map(|token| token.text.clone()).collect();
        let mut open = vec![Bracket { compared: Compared::No, first_only: false }];
        for (place, &at) in solid.iter().enumerate() {
            let near = |by: isize| -> Option<&Token> {
                Some(&tokens[*solid.get(place.checked_add_signed(by)?)?])
            };
            let top = open.last().map_or(Compared::No, |bracket| bracket.compared);
            let beside = near(-1).is_some_and(compares) || near(1).is_some_and(compares);
            let compared = if top == Compared::No && beside { Compared::Equal } else { top };
            let token = &tokens[at];
            match (token.kind, token.text.as_str()) {
                (Kind::Text, text) => out[at] = self.quoted(text, way, compared),
                (Kind::Word, name @ ("bos_token" | "eos_token"))
                    if compared != Compared::No && near(-1).is_none_or(|t| t.text != ".") =>
                {
                    out[at] = format!("{PLAIN}{name}");
                }
                (Kind::Sign, "(" | "[" | "{") => open.push(bracket(near(-1), near(-2), compared)),
                (Kind::Sign, ")" | "]" | "}") if open.len() > 1 => drop(open.pop()),
                (Kind::Sign, ",") => {
                    if let Some(bracket) = open.last_mut().filter(|bracket| bracket.first_only) {
                        bracket.compared = Compared::No;
                    }
                }
                _ => {}
            }
        }
        out.concat()
    }
}

/// In front of the names bos_token and eos_token where their text is compared.
pub const PLAIN: &str = "_plain_";

/// What becomes of a text.
#[derive(Clone, Copy, PartialEq)]
enum Compared {
    No,
    Equal,    // with a whole value, perhaps a role
    Searched, // for in another text
}

struct Bracket {
    compared: Compared,
    first_only: bool, // argument
}

fn compares(token: &Token) -> bool {
    match token.kind {
        Kind::Sign => ["==", "!=", "<", ">", "<=", ">="].contains(&token.text.as_str()),
        Kind::Word => ["in", "not", "is"].contains(&token.text.as_str()),
        _ => false,
    }
}

/// Methods, filters and tests whose arguments are looked for, and not printed.
const SEARCHES: [&str; 26] = [
    "split", "rsplit", "startswith", "endswith", "find", "rfind", "index", "rindex", "count",
    "strip", "lstrip", "rstrip", "removeprefix", "removesuffix", "partition", "rpartition", "trim",
    "startingwith", "endingwith", "equalto", "eq", "ne", "selectattr", "rejectattr", "select",
    "reject",
];

fn bracket(before: Option<&Token>, before_that: Option<&Token>, outer: Compared) -> Bracket {
    let text = before.map_or("", |token| token.text.as_str());
    let called = before_that
        .is_some_and(|token| [".", "|", "is", "not"].contains(&token.text.as_str()))
        && before.is_some_and(|token| token.kind == Kind::Word);
    if called && SEARCHES.contains(&text) {
        return Bracket { compared: Compared::Searched, first_only: false };
    }
    if called && text == "replace" {
        return Bracket { compared: Compared::Searched, first_only: true };
    }
    let compared =
        if outer == Compared::No && before.is_some_and(compares) { Compared::Equal } else { outer };
    Bracket { compared, first_only: false }
}
