//! docs/checkpoint.md holds the tables that the program works by. `WORDLINE_BLESS=1` writes them anew.

use super::support::repository;
use wordline::checkpoint::arch::tables;

#[test]
fn the_tables_in_the_docs_are_the_programs() {
    let path = repository("docs/checkpoint.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (start, end) = ("<!-- tables -->\n", "<!-- end of tables -->");
    let (before, rest) = text.split_once(start).expect("no start mark");
    let (_, after) = rest.split_once(end).expect("no end mark");
    let expected = format!("{before}{start}{}{end}{after}", tables());
    if std::env::var_os("WORDLINE_BLESS").is_some() {
        std::fs::write(&path, &expected).unwrap();
        return;
    }
    assert_eq!(text, expected, "run with WORDLINE_BLESS=1 to write the tables anew");
}
