//! The Spec's digest.

use crate::spec::{Linear, Norm, NormKind, View, WeightLayout};
use crate::{Spec, spec_digest};

fn spec() -> Spec {
    let weight = View::whole("norm.weight", &[4]);
    Spec {
        family: "tiny".to_owned(),
        hidden: 4,
        vocab: 8,
        max_pos: 16,
        embed: View::whole("embed.weight", &[8, 4]),
        positions: None,
        embed_scale: 1.0,
        layers: Vec::new(),
        final_norm: Norm { kind: NormKind::Rms, weight, bias: None, eps: 1e-5 },
        head: Linear { weight: View::whole("embed.weight", &[8, 4]), bias: None },
        tie: true,
        logit_cap: None,
        logit_scale: 1.0,
        qkv_fused: false,
        weight_layout: WeightLayout::OutIn,
    }
}

/// Pinned: the digest is part of stored programs. Canonical JSON of the spec above, keys in order, written by hand:
/// {"embed":{"add_one":false,"parts":[{"rows":[{"end":8,"start":0}],"shape":[8,4],"tensor":"embed.weight",…
/// with eps as the f64 of the f32 1e-5, 9.999999747378752e-6.
#[test]
fn it_is_the_sha_256_of_canonical_json() {
    let embed = r#"{"add_one":false,"parts":[{"rows":[{"end":8,"start":0}],"shape":[8,4],"tensor":"embed.weight","transpose":false}]}"#;
    let norm = r#"{"add_one":false,"parts":[{"rows":[{"end":4,"start":0}],"shape":[4],"tensor":"norm.weight","transpose":false}]}"#;
    let json = format!(
        r#"{{"embed":{embed},"embed_scale":1.0,"family":"tiny","final_norm":{{"bias":null,"eps":9.999999747378752e-6,"kind":"rms","weight":{norm}}},"head":{{"bias":null,"weight":{embed}}},"hidden":4,"layers":[],"logit_cap":null,"logit_scale":1.0,"max_pos":16,"positions":null,"qkv_fused":false,"tie":true,"vocab":8,"weight_layout":"out_in"}}"#
    );
    use sha2::{Digest, Sha256};
    let expected: String = Sha256::digest(json.as_bytes()).iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(spec_digest(&spec()), expected, "{json}");
}

#[test]
fn every_fact_counts() {
    let same = spec_digest(&spec());
    let changes: [fn(&mut Spec); 7] = [
        |s| s.family.push('x'),
        |s| s.hidden = 5,
        |s| s.embed.add_one = true,
        |s| s.final_norm.eps = f32::from_bits(s.final_norm.eps.to_bits() + 1),
        |s| s.logit_cap = Some(30.0),
        |s| s.tie = false,
        |s| s.weight_layout = WeightLayout::InOut,
    ];
    for change in changes {
        let mut other = spec();
        change(&mut other);
        assert_ne!(spec_digest(&other), same);
    }
}
