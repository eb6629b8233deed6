use super::samples;

#[test]
fn the_samples_are_valid() {
    for (name, program) in samples::all() {
        assert_eq!(crate::verify(&program), Ok(()), "{name}");
    }
}
