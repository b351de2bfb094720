//! A JSON text that is parsed only as far as a derivation reads it, changed, and written back.
//!
//! All other values keep their text, so that a float keeps its digits. Members keep their order. An object has few
//! members, so they are searched one after the other.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// The number of members for which memory is reserved. Most objects that are parsed have fewer.
const MEMBERS: usize = 16;

/// The depth to which a text is parsed. Depths are constants, so that no answer decides how deep the recursion goes.
#[derive(Debug, Clone, Copy)]
pub(super) enum ParseDepth {
    Not,
    /// An array. Each element is parsed to the given depth.
    Each(&'static ParseDepth),
    /// An object or `null`. Each named member is parsed to the depth beside its name. The other members are
    /// left as text.
    Members(&'static [(&'static str, ParseDepth)]),
}

/// A JSON value, parsed or left as text.
#[derive(Debug)]
pub(super) enum JsonPart<'a> {
    /// A value that is left as JSON text.
    Text(Cow<'a, str>),
    List(Vec<JsonPart<'a>>),
    Object(JsonObject<'a>),
}

/// The members of a JSON object, in order. No name among them needs escaping.
#[derive(Debug)]
pub(super) struct JsonObject<'a>(Vec<(&'a str, JsonPart<'a>)>);

impl<'a> JsonPart<'a> {
    pub(super) const NULL: Self = Self::Text(Cow::Borrowed("null"));

    /// Parses `text` to the depth `open`. `None` if `text` is not JSON, or lacks an array or object that
    /// `open` expects.
    pub(super) fn read(text: &'a Bytes, open: ParseDepth) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let part = open.deserialize(&mut deserializer).ok()?;
        deserializer.end().ok()?;
        Some(part)
    }

    pub(super) fn write(&self) -> Bytes {
        let mut text = Vec::with_capacity(self.len());
        self.write_to(&mut text);
        text.into()
    }

    fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::List(elements) => 2 + commas(elements) + elements.iter().map(Self::len).sum::<usize>(),
            Self::Object(JsonObject(members)) => {
                let member = |(name, value): &(&str, Self)| name.len() + r#""":"#.len() + value.len();
                2 + commas(members) + members.iter().map(member).sum::<usize>()
            }
        }
    }

    /// Appends the text of the value. The recursion goes as deep as the parsed part of the value.
    fn write_to(&self, text: &mut Vec<u8>) {
        match self {
            Self::Text(part) => text.extend_from_slice(part.as_bytes()),
            Self::List(elements) => {
                text.push(b'[');
                for (i, element) in elements.iter().enumerate() {
                    if i > 0 {
                        text.push(b',');
                    }
                    element.write_to(text);
                }
                text.push(b']');
            }
            Self::Object(JsonObject(members)) => {
                text.push(b'{');
                for (i, (name, member)) in members.iter().enumerate() {
                    text.extend_from_slice(if i > 0 { b",\"" } else { b"\"" });
                    text.extend_from_slice(name.as_bytes());
                    text.extend_from_slice(b"\":");
                    member.write_to(text);
                }
                text.push(b'}');
            }
        }
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::List(_) | Self::Object(_) => None,
        }
    }

    pub(super) fn as_list(&mut self) -> Option<&mut Vec<JsonPart<'a>>> {
        match self {
            Self::List(elements) => Some(elements),
            Self::Text(_) | Self::Object(_) => None,
        }
    }

    pub(super) fn as_object(&mut self) -> Option<&mut JsonObject<'a>> {
        match self {
            Self::Object(object) => Some(object),
            Self::Text(_) | Self::List(_) => None,
        }
    }
}

fn commas<T>(items: &[T]) -> usize {
    items.len().saturating_sub(1)
}

impl<'a> JsonObject<'a> {
    pub(super) fn names(&self) -> impl Iterator<Item = &'a str> {
        self.0.iter().map(|(name, _)| *name)
    }

    /// Returns `None` if the object has a member whose name is in none of the lists `known`. A newer node may
    /// write such a member, and its meaning is unknown.
    pub(super) fn only(&self, known: &[&[&str]]) -> Option<()> {
        self.names().all(|name| known.iter().any(|list| list.contains(&name))).then_some(())
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.names().any(|other| other == name)
    }

    pub(super) fn get(&mut self, name: &str) -> Option<&mut JsonPart<'a>> {
        self.0.iter_mut().find(|(other, _)| *other == name).map(|(_, value)| value)
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<JsonPart<'a>> {
        let at = self.0.iter().position(|(other, _)| *other == name)?;
        Some(self.0.remove(at).1)
    }

    pub(super) fn insert(&mut self, name: &'a str, value: JsonPart<'a>) {
        let at = self.names().position(|other| other > name).unwrap_or(self.0.len());
        self.0.insert(at, (name, value));
    }

    pub(super) fn replace(&mut self, name: &str, by: &'a str, value: JsonPart<'a>) -> Option<()> {
        let member = self.0.iter_mut().find(|(other, _)| *other == name)?;
        *member = (by, value);
        Some(())
    }

    /// Keeps the members for whose names `kept` returns true, and removes all others.
    pub(super) fn retain(&mut self, mut kept: impl FnMut(&str) -> bool) {
        self.0.retain(|(name, _)| kept(name));
    }
}

impl<'de> DeserializeSeed<'de> for ParseDepth {
    type Value = JsonPart<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<JsonPart<'de>, D::Error> {
        match self {
            Self::Not => {
                <&RawValue>::deserialize(deserializer).map(|raw| JsonPart::Text(Cow::Borrowed(raw.get())))
            }
            Self::Each(_) | Self::Members(_) => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for ParseDepth {
    type Value = JsonPart<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Not => "a value",
            Self::Each(_) => "an array",
            Self::Members(_) => "an object or null",
        })
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<JsonPart<'de>, E> {
        match self {
            Self::Members(_) => Ok(JsonPart::NULL),
            Self::Not | Self::Each(_) => Err(E::invalid_type(serde::de::Unexpected::Unit, &self)),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<JsonPart<'de>, A::Error> {
        let Self::Each(open) = self else {
            return Err(serde::de::Error::invalid_type(serde::de::Unexpected::Seq, &self));
        };
        let mut elements = Vec::new();
        while let Some(element) = seq.next_element_seed(*open)? {
            elements.push(element);
        }
        Ok(JsonPart::List(elements))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<JsonPart<'de>, A::Error> {
        let Self::Members(opened) = self else {
            return Err(serde::de::Error::invalid_type(serde::de::Unexpected::Map, &self));
        };
        let mut members = Vec::with_capacity(MEMBERS);
        // A name with escapes cannot be borrowed, so it is refused. Nodes write no such name.
        while let Some(name) = map.next_key::<&str>()? {
            let open = opened.iter().find(|(other, _)| *other == name).map_or(Self::Not, |(_, open)| *open);
            members.push((name, map.next_value_seed(open)?));
        }
        Ok(JsonPart::Object(JsonObject(members)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The depth at which `{"a":[{…}]}` is parsed: down to the members of the objects in `a`.
    const OPEN: ParseDepth = ParseDepth::Members(&[("a", ParseDepth::Each(&ParseDepth::Members(&[])))]);

    #[test]
    fn writes_back_the_text_it_read() {
        for text in [
            r#"{"z":6e-6,"a":[{"c":1.0,"b":{"d":[1.50, 2]}},null,{}],"b":null}"#,
            r#"{"a":[],"é":"\u00e9\/"}"#,
            "{}",
            "null",
        ] {
            let text = Bytes::from_static(text.as_bytes());
            let part = JsonPart::read(&text, OPEN).unwrap();
            assert_eq!((part.write(), part.len()), (text.clone(), text.len()));
        }
        let spaced = Bytes::from_static(br#" {"a" : [ {"b" : [1, 2]} ] } "#);
        assert_eq!(JsonPart::read(&spaced, OPEN).unwrap().write(), r#"{"a":[{"b":[1, 2]}]}"#);
    }

    #[test]
    fn refuses_unexpected_json() {
        for text in [
            "",
            "[]",
            "1",
            r#""a""#,
            "{",
            "{}}",
            r#"{"a":{}}"#,
            r#"{"a":[1]}"#,
            r#"{"a":null}"#,
            r#"{"\u0061":1}"#,
        ] {
            assert!(JsonPart::read(&Bytes::from_static(text.as_bytes()), OPEN).is_none(), "{text}");
        }
        assert!(JsonPart::read(&Bytes::from_static(b"{\"b\":\"\xff\"}"), OPEN).is_none());
    }
}
