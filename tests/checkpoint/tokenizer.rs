//! Tokenizers: the golden cases of the reference framework, and bytes that survive the way there and back.

use super::support::{fixtures, repository};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::path::Path;
use wordline::tokenizer::{Tokenizer, TokenizerError};

fn open(folder: &Path) -> Tokenizer {
    Tokenizer::from_json(&std::fs::read(folder.join("tokenizer.json")).unwrap()).unwrap()
}

fn given(name: &str) -> Tokenizer {
    open(&repository("tests/fixtures/given").join(name))
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

#[test]
fn golden_cases() {
    let mut cases = 0;
    for folder in fixtures() {
        if !folder.join("tokenizer.json").is_file() {
            continue;
        }
        let tokenizer = open(&folder);
        let golden: Value = serde_json::from_slice(&std::fs::read(folder.join("golden.json")).unwrap()).unwrap();
        for case in golden["tokenizer_cases"].as_array().into_iter().flatten() {
            let text = case["text"].as_str().unwrap();
            let at = format!("{} {text:?}", folder.display());
            assert_eq!(tokenizer.encode(text, true).unwrap(), ids(&case["ids"]), "{at}");
            assert_eq!(tokenizer.encode(text, false).unwrap(), ids(&case["ids_no_special"]), "{at}");
            assert_eq!(tokenizer.decode(&ids(&case["ids"]), true), case["decoded"].as_str().unwrap(), "{at}");
            cases += 1;
        }
        for prompt in golden["prompts"].as_array().into_iter().flatten() {
            if let Some(text) = prompt["text"].as_str() {
                assert_eq!(tokenizer.encode(text, false).unwrap(), ids(&prompt["input_ids"]), "{}", folder.display());
                cases += 1;
            }
        }
    }
    assert!(cases >= 9 * 6 + 2, "{cases}");
}

#[test]
fn every_byte_has_a_token_and_comes_back() {
    for name in ["gpt2", "llama", "qwen2", "qwen3_next"] {
        let tokenizer = given(name);
        let bytes: Vec<u8> = (0..=255).collect();
        let ids = tokenizer.encode_bytes(&bytes).unwrap();
        assert_eq!(tokenizer.decode_bytes(&ids).unwrap(), bytes, "{name}");
        for byte in 128..=255u8 {
            let ids = tokenizer.encode_bytes(&[byte]).unwrap();
            assert_eq!(ids.len(), 1);
            assert_eq!(tokenizer.decode(&ids, false), "\u{fffd}");
        }
    }
}

#[test]
fn vocabularies_that_are_not_of_bytes_say_so() {
    let tokenizer = given("mistral");
    assert!(matches!(tokenizer.encode_bytes(b"a\xffb"), Err(TokenizerError::Byte { byte: 0xff, at: 1 })));
    assert!(tokenizer.decode_bytes(&[5]).is_none());
    assert_eq!(tokenizer.decode(&tokenizer.encode("🙂 ok", false).unwrap(), true), "🙂 ok");
}

#[test]
fn special_tokens_are_put_around_and_left_out_as_asked() {
    let tokenizer = given("llama");
    let (with, without) = (tokenizer.encode("said", true).unwrap(), tokenizer.encode("said", false).unwrap());
    assert_eq!(with[0], tokenizer.id("<|begin_of_text|>").unwrap());
    assert_eq!(with[1..], without);
    assert_eq!(tokenizer.decode(&with, true), "said");
    assert_eq!(tokenizer.decode(&with, false), "<|begin_of_text|>said");
    assert_eq!(tokenizer.token(with[0]).unwrap(), "<|begin_of_text|>");
    assert_eq!(tokenizer.decode(&[999_999], false), "");
}

#[test]
fn a_tokenizer_that_cannot_be_read_exactly_is_refused() {
    for text in ["", "{}", "[]", "{\"model\":{\"type\":\"Other\"}}"] {
        assert!(matches!(Tokenizer::from_json(text.as_bytes()), Err(TokenizerError::Read { .. })), "{text}");
    }
    let text = std::fs::read(repository("tests/fixtures/given/gpt2/tokenizer.json")).unwrap();
    let mut json: Value = serde_json::from_slice(&text).unwrap();
    json["model"]["dropout"] = json!(0.1);
    let refused = Tokenizer::from_json(json.to_string().as_bytes()).unwrap_err();
    assert!(refused.to_string().contains("model.dropout"));
}

#[test]
fn truncation_and_padding_that_the_file_asks_for_are_off() {
    let text = std::fs::read(repository("tests/fixtures/given/gpt2/tokenizer.json")).unwrap();
    let plain = Tokenizer::from_json(&text).unwrap();
    let mut json: Value = serde_json::from_slice(&text).unwrap();
    json["truncation"] = json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
    json["padding"] = json!({"strategy": {"Fixed": 50}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "x"});
    let cutting = Tokenizer::from_json(json.to_string().as_bytes()).unwrap();
    let words = "one two three four five";
    assert_eq!(cutting.encode(words, true).unwrap(), plain.encode(words, true).unwrap());
}

thread_local! {
    /// Vocabularies of bytes without a normaliser.
    static BYTE_LEVEL: Vec<Tokenizer> = ["gpt2", "llama"].iter().map(|name| given(name)).collect();
    static NORMALISING: Tokenizer = open(&repository("demo"));
}

proptest! {
    #[test]
    fn any_text_comes_back(text in any::<String>()) {
        BYTE_LEVEL.with(|all| {
            for tokenizer in all {
                let ids = tokenizer.encode(&text, false).unwrap();
                prop_assert_eq!(&tokenizer.decode(&ids, false), &text);
            }
            Ok(())
        })?;
    }

    /// A normaliser (NFC) changes a text once; what comes back then stays.
    #[test]
    fn a_normalised_text_comes_back(text in any::<String>()) {
        NORMALISING.with(|tokenizer| {
            let normal = tokenizer.decode(&tokenizer.encode(&text, false).unwrap(), false);
            let again = tokenizer.decode(&tokenizer.encode(&normal, false).unwrap(), false);
            prop_assert_eq!(again, normal);
            Ok(())
        })?;
    }

    #[test]
    fn any_bytes_come_back(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        BYTE_LEVEL.with(|all| {
            for tokenizer in all {
                let ids = tokenizer.encode_bytes(&bytes).unwrap();
                prop_assert_eq!(&tokenizer.decode_bytes(&ids).unwrap(), &bytes);
            }
            Ok(())
        })?;
    }
}
