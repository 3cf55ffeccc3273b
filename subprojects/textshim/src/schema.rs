//! Reads a JSON schema before llguidance does: refuses, with the path, what is not enforced, and removes what
//! only annotates, so that nothing that restricts is passed over in silence.
//!
//! The keywords are those of drafts 4 to 2020-12. A keyword that no draft defines is an annotation, as the
//! specification says (JSON Schema 2020-12, core, section 6.5).

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

/// Enforced by llguidance.
pub const SUPPORTED: [&str; 26] = [
    "$ref", "additionalItems", "additionalProperties", "allOf", "anyOf", "const", "enum", "exclusiveMaximum",
    "exclusiveMinimum", "format", "items", "maxItems", "maxLength", "maxProperties", "maximum", "minItems",
    "minLength", "minProperties", "minimum", "multipleOf", "oneOf", "pattern", "patternProperties",
    "prefixItems", "properties", "type",
];
/// Enforced too, with `required` handled beside the properties.
pub const REQUIRED: &str = "required";

/// Restrict instances, and are not enforced: refused unless their value restricts nothing.
pub const REFUSED: [&str; 17] = [
    "$dynamicRef", "$recursiveRef", "contains", "dependencies", "dependentRequired", "dependentSchemas",
    "disallow", "divisibleBy", "else", "extends", "if", "not", "propertyNames", "then", "unevaluatedItems",
    "unevaluatedProperties", "uniqueItems",
];
/// Restrict only beside another keyword that is refused.
const DEPENDENT: [&str; 2] = ["maxContains", "minContains"];

/// Kept because references need them.
const STRUCTURE: [&str; 7] = ["$anchor", "$defs", "$id", "$schema", "definitions", "id", "$comment"];

/// What is wrong, and where: a JSON pointer into the schema.
pub struct Refusal {
    pub path: String,
    pub reason: String,
}

fn refuse<T>(path: &str, reason: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { path: path.to_string(), reason: reason.into() })
}

/// One more step of a JSON pointer (RFC 6901).
fn join(path: &str, key: &str) -> String {
    format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"))
}

/// Whether a refused keyword's value lets every instance pass.
fn is_neutral(keyword: &str, value: &Value) -> bool {
    match keyword {
        "uniqueItems" => *value == Value::Bool(false),
        "unevaluatedItems" | "unevaluatedProperties" | "propertyNames" => {
            *value == Value::Bool(true) || value.as_object().is_some_and(Map::is_empty)
        }
        "dependencies" | "dependentRequired" | "dependentSchemas" => {
            value.as_object().is_some_and(Map::is_empty)
        }
        // then and else alone do nothing; beside `if` that one is refused.
        "then" | "else" => true,
        _ => false,
    }
}

/// The schema as llguidance takes it, or the first refusal in reading order.
pub fn normalize(schema: &Value) -> Result<Value, Refusal> {
    let walked = walk(schema, "")?;
    let mut multiples = Multiples::default();
    multiples.collect(&walked, "")?;
    multiples.check()?;
    Meeting { root: &walked, steps: 0 }.walk(&walked, "")?;
    match walked {
        Value::Bool(true) => Ok(Value::Object(Map::new())),
        Value::Bool(false) => refuse("", "no value fits the schema `false`"),
        object => Ok(object),
    }
}

fn walk(schema: &Value, path: &str) -> Result<Value, Refusal> {
    let object = match schema {
        Value::Bool(_) => return Ok(schema.clone()),
        Value::Object(object) => object,
        _ => return refuse(path, "a schema is an object, true or false"),
    };
    let mut out = Map::new();
    for (keyword, value) in object {
        let place = join(path, keyword);
        let name = keyword.as_str();
        if REFUSED.contains(&name) {
            if !is_neutral(name, value) {
                return refuse(&place, format!("`{name}` is not supported"));
            }
        } else if DEPENDENT.contains(&name) {
            // Without `contains`, which is refused, these have no meaning.
        } else if SUPPORTED.contains(&name) || name == REQUIRED || STRUCTURE.contains(&name) {
            out.insert(keyword.clone(), keep(name, value, &place)?);
        }
    }
    check_together(&mut out, path)?;
    Ok(Value::Object(in_one_run(out)))
}

/// The parser's row has four items for each property that may be left out and at most 2,000 in all: an object
/// with more would compile slowly, in the square of their number, and fail in the middle of an answer.
const MOST_OPTIONAL: usize = 400;

fn check_optional(out: &Map<String, Value>, path: &str) -> Result<(), Refusal> {
    let Some(properties) = out.get("properties").and_then(Value::as_object) else { return Ok(()) };
    if properties.len() <= MOST_OPTIONAL {
        return Ok(());
    }
    let required: HashSet<&str> =
        out.get(REQUIRED).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    if properties.keys().filter(|name| !required.contains(name.as_str())).count() > MOST_OPTIONAL {
        let reason = format!("more than {MOST_OPTIONAL} properties that are not `required` are not supported");
        return refuse(&join(path, "properties"), reason);
    }
    Ok(())
}

/// Keywords whose meaning depends on others beside them.
fn check_together(out: &mut Map<String, Value>, path: &str) -> Result<(), Refusal> {
    if !out.get("items").is_some_and(Value::is_array) {
        out.shift_remove("additionalItems"); // it has no meaning then, and would hide prefixItems
    } else if out.contains_key("prefixItems") {
        return refuse(&join(path, "prefixItems"), "`prefixItems` beside a list of `items` is not supported");
    }
    check_optional(out, path)?;
    // A name that is written twice counts once for whoever reads it; of names that are no property's only one
    // is sure to be new.
    let required: HashSet<&str> =
        out.get(REQUIRED).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    if out.get("minProperties").and_then(Value::as_u64).is_some_and(|least| least > required.len() as u64 + 1) {
        let reason = "`minProperties` is supported up to one more than `required` names";
        return refuse(&join(path, "minProperties"), reason);
    }
    Ok(())
}

/// llguidance reads the keywords between two of these by themselves, so the others are put in one run before them.
fn in_one_run(out: Map<String, Value>) -> Map<String, Value> {
    const APPLICATORS: [&str; 6] = ["$ref", "allOf", "anyOf", "const", "enum", "oneOf"];
    let (late, mut early): (Map<String, Value>, Map<String, Value>) =
        out.into_iter().partition(|(keyword, _)| APPLICATORS.contains(&keyword.as_str()));
    early.extend(late);
    early
}

/// What the values of `multipleOf` cost: an automaton has a state for each remainder, 0.5 KB and 7 us; those that
/// come together (`allOf`, `$ref`, beside `anyOf`) become one for their least common multiple.
const MOST_REMAINDERS: u64 = 10_000;
const MOST_DECIMALS: u32 = 9;

#[derive(Default)]
struct Multiples {
    found: Vec<(u64, u32)>, // digits, decimals: 0.25 is (25, 2)
    place: String,          // of the last one
    may_meet: bool,
}

impl Multiples {
    fn collect(&mut self, schema: &Value, path: &str) -> Result<(), Refusal> {
        match schema {
            Value::Object(map) => {
                for (name, inner) in map {
                    let place = join(path, name);
                    match name.as_str() {
                        "multipleOf" if inner.is_number() => self.add(inner, place)?,
                        "allOf" | "anyOf" | "oneOf" | "$ref" => {
                            self.may_meet = true;
                            self.collect(inner, &place)?;
                        }
                        "enum" | "const" => {}
                        _ => self.collect(inner, &place)?,
                    }
                }
                Ok(())
            }
            Value::Array(list) => {
                list.iter().enumerate().try_for_each(|(index, inner)| self.collect(inner, &join(path, &index.to_string())))
            }
            _ => Ok(()),
        }
    }

    fn add(&mut self, value: &Value, place: String) -> Result<(), Refusal> {
        let mut digits = value.as_f64().unwrap_or(0.0);
        let mut decimals = 0;
        while digits.fract() != 0.0 && decimals <= MOST_DECIMALS {
            digits *= 10.0;
            decimals += 1;
        }
        if decimals > MOST_DECIMALS || digits > MOST_REMAINDERS as f64 {
            let reason = format!("`multipleOf` is supported up to {MOST_REMAINDERS}, its decimals counted in (0.25 is 25)");
            return refuse(&place, reason);
        }
        if !self.found.contains(&(digits as u64, decimals)) {
            self.found.push((digits as u64, decimals));
        }
        self.place = place;
        Ok(())
    }

    fn check(&self) -> Result<(), Refusal> {
        let sum: u64 = self.found.iter().map(|(digits, _)| digits).sum();
        let most = self.found.iter().map(|(_, decimals)| *decimals).max().unwrap_or(0);
        let common = self.found.iter().try_fold(1u64, |common, (digits, decimals)| {
            let whole = digits * 10u64.pow(most - decimals);
            Some(common / gcd(common, whole) * whole).filter(|common| *common <= MOST_REMAINDERS)
        });
        if sum > MOST_REMAINDERS || (self.may_meet && self.found.len() > 1 && common.is_none()) {
            return refuse(&self.place, format!("the schema's values of `multipleOf` come to more than {MOST_REMAINDERS} together"));
        }
        Ok(())
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// What meets in `allOf` and behind `$ref` is multiplied out by llguidance, where no fuel is counted: references
/// that double each other would take any memory, and the time for patterns grows exponentially with their number.
struct Meeting<'a> {
    root: &'a Value,
    steps: usize,
}

const MOST_MEETING: usize = 256; // schemas of one value, with all branches
const MOST_PATTERNS: usize = 8; // of one value: 10 ms
const MOST_CHAINED: usize = 64; // longer ones are circles
const MOST_STEPS: usize = 200_000; // for the whole schema: 20 ms
const MOST_PATTERN_BYTES: usize = 16384; // LIMIT_REGEX_BYTES
const MOST_NESTED: usize = 16; // values inside values that meet

impl<'a> Meeting<'a> {
    fn walk(&mut self, schema: &'a Value, path: &str) -> Result<(), Refusal> {
        match schema {
            Value::Object(map) => {
                if map.contains_key("allOf") || (map.contains_key("$ref") && map.len() > 1) {
                    self.meet(vec![schema], path, 0)?;
                }
                map.iter()
                    .filter(|(name, _)| !matches!(name.as_str(), "enum" | "const"))
                    .try_for_each(|(name, inner)| self.walk(inner, &join(path, name)))
            }
            Value::Array(list) => {
                list.iter().enumerate().try_for_each(|(index, inner)| self.walk(inner, &join(path, &index.to_string())))
            }
            _ => Ok(()),
        }
    }

    /// All of `schemas` are of one value.
    fn meet(&mut self, schemas: Vec<&'a Value>, path: &str, depth: usize) -> Result<(), Refusal> {
        let too_large = || refuse(path, "too many schemas meet in `allOf` or behind `$ref`");
        let mut open: Vec<(&Value, usize)> = schemas.into_iter().map(|schema| (schema, 0)).collect();
        let mut level = Vec::new();
        while let Some((schema, chain)) = open.pop() {
            let Value::Object(map) = schema else { continue };
            level.push(map);
            self.steps += 1;
            if level.len() > MOST_MEETING || self.steps > MOST_STEPS {
                return too_large();
            }
            let target = map.get("$ref").and_then(Value::as_str).and_then(|text| self.root.pointer(text.get(1..)?));
            let lists = ["allOf", "anyOf", "oneOf"].into_iter().filter_map(|keyword| map.get(keyword)?.as_array());
            if chain < MOST_CHAINED {
                open.extend(lists.flatten().chain(target).map(|schema| (schema, chain + 1)));
            }
        }
        let patterns: HashSet<&str> = level.iter().filter_map(|map| map.get("pattern")?.as_str()).collect();
        if patterns.len() > MOST_PATTERNS {
            return refuse(path, format!("more than {MOST_PATTERNS} patterns for one value are not supported"));
        }
        let mut inner: HashMap<&str, Vec<&'a Value>> = HashMap::new();
        for map in &level {
            for (name, schema) in map.get("properties").and_then(Value::as_object).into_iter().flatten() {
                self.steps += 1;
                inner.entry(name).or_default().push(schema);
            }
            inner.entry("").or_default().extend(map.get("items").filter(|s| s.is_object()));
        }
        if self.steps > MOST_STEPS {
            return too_large();
        }
        if depth >= MOST_NESTED {
            return Ok(()); // a schema that refers to itself
        }
        inner.into_values().filter(|schemas| schemas.len() > 1).try_for_each(|schemas| self.meet(schemas, path, depth + 1))
    }
}

/// Numbers become doubles inside llguidance: integers that those cannot hold are refused.
fn is_exact(value: &Value) -> bool {
    match value {
        Value::Number(number) => {
            number.as_f64().is_some_and(|double| double.fract() != 0.0 || double.abs() <= (1u64 << 53) as f64)
                && (number.is_f64() || number.as_i64().is_some_and(|whole| whole.unsigned_abs() <= 1 << 53))
        }
        Value::Array(values) => values.iter().all(is_exact),
        Value::Object(map) => map.values().all(is_exact),
        _ => true,
    }
}

fn keep(keyword: &str, value: &Value, place: &str) -> Result<Value, Refusal> {
    let counts_numbers = matches!(
        keyword,
        "const" | "enum" | "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf"
    );
    if counts_numbers && !is_exact(value) {
        return refuse(place, "integers beyond 2^53 are not supported");
    }
    match keyword {
        "properties" | "patternProperties" | "$defs" | "definitions" => {
            let Value::Object(map) = value else {
                return refuse(place, format!("`{keyword}` is an object of schemas"));
            };
            let walked: Result<Map<String, Value>, Refusal> = map
                .iter()
                .map(|(name, inner)| Ok((name.clone(), walk(inner, &join(place, name))?)))
                .collect();
            Ok(Value::Object(walked?))
        }
        "allOf" | "anyOf" | "oneOf" | "prefixItems" => list(keyword, value, place),
        "items" if value.is_array() => list(keyword, value, place),
        "items" | "additionalItems" | "additionalProperties" => walk(value, place),
        "$ref" => match value.as_str() {
            Some(target) if target.starts_with('#') => Ok(value.clone()),
            Some(_) => refuse(place, "only references into the schema itself (`#…`) are supported"),
            None => refuse(place, "`$ref` is a string"),
        },
        "required" => match value.as_array() {
            Some(names) if names.iter().all(Value::is_string) => Ok(value.clone()),
            // Draft 3's boolean, which later drafts do not know.
            _ => refuse(place, "`required` is a list of names"),
        },
        "enum" => match value.as_array() {
            Some(values) if !values.is_empty() => Ok(value.clone()),
            _ => refuse(place, "`enum` is a list of at least one value"),
        },
        "pattern" if value.as_str().is_some_and(|text| text.len() > MOST_PATTERN_BYTES) => {
            refuse(place, format!("`pattern` has more than {MOST_PATTERN_BYTES} bytes"))
        }
        "format" | "pattern" if !value.is_string() => {
            refuse(place, format!("`{keyword}` is a string"))
        }
        "minItems" | "maxItems" | "minLength" | "maxLength" | "minProperties" | "maxProperties" => {
            match value.as_u64().or_else(|| value.as_f64().filter(|f| *f >= 0.0 && f.fract() == 0.0).map(|f| f as u64)) {
                Some(count) => Ok(Value::from(count)),
                None => refuse(place, format!("`{keyword}` is a whole number of at least 0")),
            }
        }
        "multipleOf" if !value.as_f64().is_some_and(|f| f > 0.0) => {
            refuse(place, "`multipleOf` is a number above 0")
        }
        "minimum" | "maximum" if !value.is_number() => {
            refuse(place, format!("`{keyword}` is a number"))
        }
        _ => Ok(value.clone()),
    }
}

fn list(keyword: &str, value: &Value, place: &str) -> Result<Value, Refusal> {
    let Some(schemas) = value.as_array().filter(|schemas| !schemas.is_empty()) else {
        return refuse(place, format!("`{keyword}` is a list of at least one schema"));
    };
    let walked: Result<Vec<Value>, Refusal> = schemas
        .iter()
        .enumerate()
        .map(|(index, inner)| walk(inner, &join(place, &index.to_string())))
        .collect();
    Ok(Value::Array(walked?))
}
