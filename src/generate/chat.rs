//! `ChatTemplate`: turns messages into the prompt text that a chat model was trained on.
//!
//! Templates are Jinja as the reference framework runs it: blocks trimmed, `tojson` as Python's `json.dumps`,
//! `raise_exception` and `strftime_now` at hand, Python's methods on strings, lists and dicts, loop controls. A template
//! is a stranger's program, so it runs on a budget.

use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{Environment, Error, ErrorKind, Output, State, escape_formatter, syntax::SyntaxConfig};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use std::io;

/// Work units that one rendering may spend; real templates spend a few thousand a message.
const FUEL: u64 = 5_000_000;

/// Longest template, in bytes; real ones stay below 32 KiB. An expression nests at most as deep as the text is long, and
/// the compiler of templates recurses over it.
const LENGTH: usize = 64 << 10;

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// Text.
    pub content: String,
}

impl Message {
    /// A message.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

/// The special tokens that templates refer to, by their text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// (`bos_token`, `<s>`) and the like.
    pub texts: Vec<(String, String)>,
}

/// Why a chat template gives no prompt.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// The template is not well-formed.
    #[error("the chat template is not well-formed: {0}")]
    Syntax(String),
    /// It refused the messages or failed on them.
    #[error("the chat template refused these messages: {0}")]
    Render(String),
}

/// A checkpoint's chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    specials: SpecialTokens,
}

impl ChatTemplate {
    /// Compile `source`.
    ///
    /// # Errors
    /// It is not well-formed.
    pub fn new(source: &str, specials: SpecialTokens) -> Result<Self, ChatError> {
        if source.len() > LENGTH {
            let given = source.len();
            return Err(ChatError::Syntax(format!("it has {given} bytes, at most {LENGTH} are taken")));
        }
        let mut env = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        env.set_syntax(syntax.map_err(|e| ChatError::Syntax(describe(&e)))?);
        env.set_fuel(Some(FUEL));
        env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        env.set_formatter(python_text);
        env.add_filter("tojson", tojson);
        env.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        env.add_function("strftime_now", strftime_now);
        env.add_template_owned(NAME, without_generation_tags(source)).map_err(|e| ChatError::Syntax(describe(&e)))?;
        Ok(Self { env, specials })
    }

    /// The prompt for `messages`, ending where the assistant's answer starts.
    ///
    /// # Errors
    /// The template refused the messages, failed, or spent its budget.
    pub fn render(&self, messages: &[Message]) -> Result<String, ChatError> {
        let mut context = vec![
            ("messages".to_owned(), Value::from(Serde(messages))),
            ("add_generation_prompt".to_owned(), Value::from(true)),
            ("tools".to_owned(), Value::from(())),
            ("documents".to_owned(), Value::from(())),
        ];
        context.extend(self.specials.texts.iter().map(|(name, text)| (name.clone(), Value::from(text.clone()))));
        let template = self.env.get_template(NAME).map_err(|e| ChatError::Render(describe(&e)))?;
        template.render(Value::from_pairs(context)).map_err(|e| ChatError::Render(describe(&e)))
    }
}

const NAME: &str = "chat_template";

/// An error with its place in the template.
fn describe(error: &Error) -> String {
    let what = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    error.line().map_or(what.clone(), |line| format!("{what} (template line {line})"))
}

/// The template without `{% generation %}` and `{% endgeneration %}`: they mark the assistant's text for training and
/// print nothing. White space control on the tags is kept by leaving an empty comment in their place.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let Some(close) = rest[open..].find("%}").map(|at| open + at) else { break };
        let inside = &rest[open + 2..close];
        let name = inside.trim_matches(['-', '+']).trim();
        if matches!(name, "generation" | "endgeneration") {
            out.push_str(&rest[..open]);
            // `set` is a block tag, so that trimming acts on it as it would on the tag it stands for.
            let left = if inside.starts_with('-') { "-" } else { "" };
            let right = if inside.ends_with('-') { "-" } else { "" };
            out.push_str(&format!("{{%{left} set _generation = 0 {right}%}}"));
        } else {
            out.push_str(&rest[..close + 2]);
        }
        rest = &rest[close + 2..];
    }
    out.push_str(rest);
    out
}

/// Print a value as Python's `str` does where that differs.
fn python_text(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    let text = match value.kind() {
        minijinja::value::ValueKind::None => "None",
        minijinja::value::ValueKind::Bool if value.is_true() => "True",
        minijinja::value::ValueKind::Bool => "False",
        _ => return escape_formatter(out, state, value),
    };
    out.write_str(text).map_err(Error::from)
}

/// `json.dumps(value, ensure_ascii=False, …)`: `", "` and `": "` between items unless `indent` or `separators` say
/// otherwise.
fn tojson(value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    let bad = |e: serde_json::Error| Error::new(ErrorKind::BadSerialization, e.to_string());
    let indent: Option<usize> = kwargs.get("indent")?;
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    let ascii: Option<bool> = kwargs.get("ensure_ascii")?;
    let sort: Option<bool> = kwargs.get("sort_keys")?;
    kwargs.assert_all_used()?;
    let mut json = serde_json::to_value(value).map_err(bad)?;
    if sort == Some(true) {
        json.sort_all_objects();
    }
    let mut bytes = Vec::new();
    match indent {
        Some(width) => {
            let pad = " ".repeat(width.min(64));
            json.serialize(&mut Serializer::with_formatter(&mut bytes, PrettyFormatter::with_indent(pad.as_bytes())))
        }
        None => {
            let [item, key] = match separators.as_deref() {
                Some([item, key]) => [item.clone(), key.clone()],
                _ => [", ".to_owned(), ": ".to_owned()],
            };
            json.serialize(&mut Serializer::with_formatter(&mut bytes, Python { item, key }))
        }
    }
    .map_err(bad)?;
    let mut text = String::from_utf8_lossy(&bytes).into_owned();
    if ascii == Some(true) {
        text = text
            .encode_utf16()
            .map(|unit| {
                char::from_u32(unit.into())
                    .filter(char::is_ascii)
                    .map_or_else(|| format!("\\u{unit:04x}"), String::from)
            })
            .collect();
    }
    Ok(Value::from(text))
}

/// JSON on one line with chosen separators.
struct Python {
    item: String,
    key: String,
}

impl Formatter for Python {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(self.item.as_bytes()) }
    }
    fn begin_object_key<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(self.item.as_bytes()) }
    }
    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(self.key.as_bytes())
    }
}

/// The local time by a `strftime` pattern.
fn strftime_now(format: &str) -> Result<String, Error> {
    let now = jiff::ZonedDateTime::now();
    jiff::fmt::strtime::format(format, &now).map_err(|e| Error::new(ErrorKind::InvalidOperation, e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str, messages: &[Message]) -> Result<String, ChatError> {
        let texts = vec![("bos_token".to_owned(), "<s>".to_owned()), ("eos_token".to_owned(), "</s>".to_owned())];
        ChatTemplate::new(source, SpecialTokens { texts })?.render(messages)
    }

    fn hello() -> Vec<Message> {
        vec![Message::new("system", " Be brief. "), Message::new("user", "Hello <you> & \"me\"")]
    }

    #[test]
    fn chatml() {
        let source = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + \
                      '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
        assert_eq!(
            render(source, &hello()).unwrap(),
            "<|im_start|>system\n Be brief. <|im_end|>\n<|im_start|>user\nHello <you> & \"me\"<|im_end|>\n<|im_start|>assistant\n"
        );
    }

    #[test]
    fn what_real_templates_use() {
        let source = r#"
{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%Y") %}
{%- endif %}
{%- set ns = namespace(first=true) %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0].content.strip() %}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
    {%- if message.role not in ['user', 'assistant'] %}{{ raise_exception('only user and assistant') }}{% endif %}
    {%- if loop.first and system %}[{{ system | upper }}]{% endif %}
    {%- generation %}{{ message['content'].split('<')[0].rstrip() }}{% endgeneration %}
    {%- if loop.index0 == 0 %}{%- break %}{%- endif %}
{%- endfor %}
{{- {'a': [1, 2.5, true, none], 'b': 'ü<'} | tojson }} {{ {'a': 1} | tojson(indent=2) }} {{ true }} {{ none }}
{%- if messages | selectattr('role', 'equalto', 'user') | list | length == 1 %} one{% endif %}
{%- for key, value in {'x': 1}.items() %} {{ key }}={{ value }}{% endfor %}{{ eos_token }}"#;
        assert_eq!(
            render(&source.replace("{%- generation %}", "{% generation %}"), &hello()).unwrap(),
            "<s>[BE BRIEF.]Hello{\"a\": [1, 2.5, true, null], \"b\": \"ü<\"} {\n  \"a\": 1\n} True None one x=1</s>"
        );
    }

    #[test]
    fn a_template_that_refuses_says_why_and_where() {
        let source =
            "{% if messages[0].role == 'system' %}\n{{ raise_exception('System role not supported') }}{% endif %}";
        let error = render(source, &hello()).unwrap_err().to_string();
        assert!(error.contains("System role not supported") && error.contains("line 2"), "{error}");
        let error = render("{% if %}", &[]).unwrap_err().to_string();
        assert!(error.contains("not well-formed") && error.contains("line 1"), "{error}");
    }

    #[test]
    fn a_template_that_never_ends_is_ended() {
        let source = "{% for a in range(100000) %}{% for b in range(100000) %}{{ a * b }}{% endfor %}{% endfor %}";
        assert!(matches!(render(source, &[]), Err(ChatError::Render(_))));
    }

    #[test]
    fn dates_follow_strftime() {
        let date = render("{{ strftime_now('%d %b %Y') }}", &[]).unwrap();
        assert_eq!(date.split(' ').count(), 3, "{date}");
        assert!(render("{{ strftime_now('%!') }}", &[]).is_err());
    }

    #[test]
    fn tojson_takes_pythons_options() {
        let one = |source: &str| render(source, &[]).unwrap();
        assert_eq!(
            one("{{ {'b': 1, 'a': 'é'} | tojson(sort_keys=true, ensure_ascii=true) }}"),
            r#"{"a": "\u00e9", "b": 1}"#
        );
        assert_eq!(one("{{ [1, 2] | tojson(separators=(',', ':')) }}"), "[1,2]");
        assert_eq!(one("{{ 'it\\'s <b>' | tojson }}"), "\"it's <b>\"");
    }
}
