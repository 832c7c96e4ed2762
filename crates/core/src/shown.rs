//! Text of others, for people: what a peer named itself, or a caller its key, reaches terminals and logs.
//!
//! What must stay true: no character of it moves a cursor, starts a line, or turns the direction of what stands
//! beside it; two texts that differ are shown as different characters. They may still look alike: letters of two
//! scripts do, and some characters that Unicode calls printable have no width.

use std::fmt::{self, Write};

/// Shows text: what prints as it is, everything else escaped, the backslash too.
pub fn shown(text: &str) -> impl fmt::Display + '_ {
    shown_bytes(text.as_bytes())
}

/// Shows bytes that may be text.
pub fn shown_bytes(bytes: &[u8]) -> impl fmt::Display + '_ {
    struct Shown<'a>(&'a [u8]);
    impl fmt::Display for Shown<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            for chunk in self.0.utf8_chunks() {
                for c in chunk.valid().chars() {
                    show(f, c)?;
                }
                for byte in chunk.invalid() {
                    write!(f, "\\x{byte:02x}")?;
                }
            }
            Ok(())
        }
    }
    Shown(bytes)
}

/// Whether a character is shown as it is; the backslash is not, because it begins the escapes.
pub fn prints(c: char) -> bool {
    matches!(c, '\'' | '"') || c.is_ascii_graphic() && c != '\\' || escape(c, |_| ()) == 1
}

fn show(f: &mut fmt::Formatter<'_>, c: char) -> fmt::Result {
    if matches!(c, '\'' | '"') || c.is_ascii_graphic() && c != '\\' {
        return f.write_char(c);
    }
    let mut written = Ok(());
    escape(c, |c| written = written.and_then(|()| f.write_char(c)));
    written
}

/// The characters that stand for one which may not print; how many.
fn escape(c: char, mut each: impl FnMut(char)) -> usize {
    // Behind a letter, where marks that combine with it are text; `escape_debug` knows what does not print.
    let mut pair = [b'a', 0, 0, 0, 0];
    let end = 1 + c.encode_utf8(&mut pair[1..]).len();
    let pair = std::str::from_utf8(&pair[..end]).expect("a letter and a character");
    pair.escape_debug().skip(1).map(&mut each).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_what_does_not_print_is_escaped() {
        for (text, expected) in [
            ("node-3 'a' \"b\"", "node-3 'a' \"b\""),
            ("größe 東京 e\u{301}", "größe 東京 e\u{301}"),
            ("a\u{1b}[2Jb", "a\\u{1b}[2Jb"),
            ("a\nINFO all is well", "a\\nINFO all is well"),
            ("a\rb\tc", "a\\rb\\tc"),
            ("a\\nb", "a\\\\nb"),
            ("\u{202e}gnp", "\\u{202e}gnp"),
            ("a\u{200b}b", "a\\u{200b}b"),
            ("a\u{2028}\u{feff}\u{9b}", "a\\u{2028}\\u{feff}\\u{9b}"),
        ] {
            assert_eq!(shown(text).to_string(), expected);
        }
        assert_eq!(shown_bytes(b"a\xff\x00").to_string(), "a\\xff\\0");
    }
}
