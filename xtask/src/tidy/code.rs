//! A Rust file as the words that the compiler sees: no comments, no strings. Knows which of them are
//! in tests, and nothing of what they mean.

use std::str::FromStr;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The tokens of a file, in order.
#[derive(Debug)]
pub struct Code {
    pub tokens: Vec<Token>,
    /// Line and reason, where the file is no Rust.
    pub unreadable: Option<(usize, String)>,
}

/// One identifier, literal, punctuation mark or bracket.
#[derive(Debug)]
pub struct Token {
    pub text: String,
    /// Counted from 1.
    pub line: usize,
    /// Inside of an item under `#[cfg(test)]`.
    pub in_test: bool,
}

impl Code {
    pub fn read(text: &str) -> Code {
        let mut code = Code { tokens: Vec::new(), unreadable: None };
        match TokenStream::from_str(text) {
            Ok(stream) => code.push_stream(stream, false),
            Err(error) => {
                code.unreadable = Some((error.span().start().line, error.to_string()));
            }
        }
        code
    }

    /// Lines where the tokens of `pattern` stand in a row, such as `["thread", "::", "spawn"]`. What
    /// follows the last `::` is also found in braces: `thread::{self, spawn}`.
    pub fn find<'a>(&'a self, pattern: &'a [&str]) -> impl Iterator<Item = &'a Token> {
        let path = pattern.len() > 2 && pattern[pattern.len() - 2] == "::";
        (0..self.tokens.len()).filter_map(move |at| {
            if self.stands_at(at, pattern) {
                return self.tokens.get(at);
            }
            let (last, prefix) = pattern.split_last().filter(|_| path)?;
            let open = at + prefix.len();
            let braced = self.stands_at(at, prefix) && self.text(open) == "{";
            braced.then(|| self.first_segment(open, last)).flatten()
        })
    }

    /// The tokens that follow those of `pattern`: the name behind `["pub", "struct"]`.
    pub fn find_behind<'a>(&'a self, pattern: &'a [&str]) -> impl Iterator<Item = &'a Token> {
        let places = (0..self.tokens.len()).filter(|at| self.stands_at(*at, pattern));
        places.filter_map(|at| self.tokens.get(at + pattern.len()))
    }

    /// The token `word` that starts a path in the braces that open at `open`.
    fn first_segment(&self, open: usize, word: &str) -> Option<&Token> {
        let mut depth = 0;
        for at in open..self.tokens.len() {
            match self.text(at) {
                "{" => depth += 1,
                "}" if depth == 1 => return None,
                "}" => depth -= 1,
                text if text == word && depth == 1 && self.text(at - 1) != "::" => {
                    return self.tokens.get(at);
                }
                _ => {}
            }
        }
        None
    }

    fn stands_at(&self, at: usize, pattern: &[&str]) -> bool {
        pattern.iter().enumerate().all(|(i, word)| self.text(at + i) == *word)
    }

    fn text(&self, at: usize) -> &str {
        self.tokens.get(at).map_or("", |token| &token.text)
    }

    fn push_stream(&mut self, stream: TokenStream, mut in_test: bool) {
        let inherited = in_test;
        let mut trees = stream.into_iter().peekable();
        while let Some(tree) = trees.next() {
            let line = tree.span().start().line;
            match tree {
                TokenTree::Group(group) => {
                    in_test |= group.delimiter() == Delimiter::Bracket
                        && group.stream().to_string() == "cfg (test)";
                    let [open, close] = brackets(group.delimiter());
                    self.push(open, line, in_test);
                    self.push_stream(group.stream(), in_test);
                    self.push(close, group.span_close().end().line, in_test);
                    // the item under the attribute ends with its braces, or with a semicolon
                    if group.delimiter() == Delimiter::Brace {
                        in_test = inherited;
                    }
                }
                TokenTree::Punct(punct) => {
                    let next_is_colon =
                        matches!(trees.peek(), Some(TokenTree::Punct(p)) if p.as_char() == ':');
                    if punct.as_char() == ':' && next_is_colon {
                        trees.next();
                        self.push("::", line, in_test);
                    } else {
                        self.push(&punct.as_char().to_string(), line, in_test);
                    }
                    if punct.as_char() == ';' {
                        in_test = inherited;
                    }
                }
                other => self.push(&other.to_string(), line, in_test),
            }
        }
    }

    fn push(&mut self, text: &str, line: usize, in_test: bool) {
        if !text.is_empty() {
            self.tokens.push(Token { text: text.to_owned(), line, in_test });
        }
    }
}

fn brackets(delimiter: Delimiter) -> [&'static str; 2] {
    match delimiter {
        Delimiter::Parenthesis => ["(", ")"],
        Delimiter::Brace => ["{", "}"],
        Delimiter::Bracket => ["[", "]"],
        Delimiter::None => ["", ""],
    }
}
