package query

import (
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// regexCase is a pattern with texts in which it is found, and others, as servers have
// it: TestServer asks them the same.
type regexCase struct {
	pattern, options string
	yes, no          []string
}

var regexCases = []regexCase{
	{"", "", []string{"", "a"}, nil},
	{"b", "", []string{"b", "abc", "b\n"}, []string{"", "B"}},
	{"^b", "", []string{"b", "bc"}, []string{"ab", "a\nb"}},
	{"b$", "", []string{"b", "ab", "b\n"}, []string{"ba", "b\n\n", "b\r\n"}},
	{"^$", "", []string{"", "\n"}, []string{"a", "\n\n"}},
	{"b\\Z", "m", []string{"b", "b\n"}, []string{"b\nc"}},
	{"b\\z", "", []string{"b"}, []string{"b\n"}},
	{"\\Ab", "m", []string{"b"}, []string{"a\nb"}},
	{"^b", "m", []string{"b", "a\nb"}, []string{"ab"}},
	{"b$", "m", []string{"b", "b\n", "b\nc", "b\n\n"}, []string{"ba"}},
	{"(^|,)b(,|$)", "", []string{"b", "a,b", "b,c", "a,b\n"}, []string{"ab", "b\n,"}},
	{".", "", []string{"a", "日", "\r", "\u2028", "\x00"}, []string{"", "\n"}},
	{".", "s", []string{"\n"}, []string{""}},
	{"^.$", "", []string{"日", "😀", "a\n"}, []string{"aa", "\n"}},
	{"a b # c\n", "x", []string{"ab"}, []string{"a b"}},
	{"a|b#)\n", "x", []string{"a", "b"}, []string{"#"}},
	{"a\\#b\\Q#\\E", "x", []string{"a#b#"}, []string{"a"}},
	{"a(?-x)#", "x", []string{"a#"}, []string{"a"}},
	{"(?x: a #)\n)#", "", []string{"a#"}, []string{"a"}},
	{"a #\u2028b\nc", "x", []string{"ac"}, []string{"abc"}},
	{"(?)(?-)a(?i-)b", "", []string{"aB"}, []string{"A"}},
	{"a{ 1}|x{1|{,}", "", []string{"a{ 1}", "x{1", "{,}"}, []string{"a", "x"}},
	{"^(a{2}){0}b{0,0}$", "", []string{""}, []string{"aa", "b"}},
	{"a[ #]b\\ c", "x", []string{"a b c", "a#b c"}, []string{"abc"}},
	{"a +", "x", []string{"aa"}, []string{"b"}},
	{"a\nb #x\nc", "x", []string{"abc"}, []string{"ab"}},
	{"^\\w+$", "", []string{"aZ_09"}, []string{"é", "a b", ""}},
	{"\\W", "", []string{"é", "日", " "}, []string{"aZ_09"}},
	{"^\\s+$", "", []string{" \t\n\v\f\r"}, []string{"\u00a0", "\u2003", "\u0085"}},
	{"\\S", "", []string{"\u00a0", "a"}, []string{" \v"}},
	{"^\\d$", "", []string{"7"}, []string{"٣"}},
	{"^[\\w.-]+$", "", []string{"a.b-c"}, []string{"é"}},
	{"^[\\w-.]+$", "", []string{"a.b-c"}, []string{"a+"}},
	{"^[\\D]$", "", []string{"a", "é", "日"}, []string{"7"}},
	{"^[^\\d]$", "", []string{"a", "é", "日"}, []string{"7"}},
	{"^[^\\D]$", "", []string{"7"}, []string{"é", "日", "a"}},
	{"^[^\\Wa]$", "", []string{"b"}, []string{"a", "é", "日"}},
	{"^[\\Wa]$", "i", []string{"A", "a", "é", "日"}, []string{"b"}},
	{"^[]a]$", "", []string{"]", "a"}, []string{"b"}},
	{"^[^]a]$", "", []string{"b", "日", "\x01"}, []string{"]", "a"}},
	{"^[a\\]\\-\\\\]$", "", []string{"]", "-", "\\"}, []string{"b"}},
	{"^[a-]$", "", []string{"-", "a"}, []string{"b"}},
	{"^[--0]$", "", []string{"-", ".", "0"}, []string{"1"}},
	{"^[\\b]$", "", []string{"\b"}, []string{"b"}},
	{"^[[:alpha:][:digit:]_]+$", "", []string{"aZ7_"}, []string{"é"}},
	{"^[[:^alpha:]]+$", "", []string{"7", "é", "日"}, []string{"a"}},
	{"^[^[:alpha:]]+$", "", []string{"7", "é", "日"}, []string{"a"}},
	{"^[[:punct:]]+$", "", []string{"!@[`{~$+<=>^|"}, []string{"a", "§"}},
	{"^[[:space:]]+$", "", []string{" \t\n\v\f\r"}, []string{"\u00a0"}},
	{"^[[:upper:]]+$", "i", []string{"aB"}, []string{"7", "ß"}},
	{"^[^[:upper:]]+$", "i", []string{"7"}, []string{"a", "B"}},
	{"^[[:word:]]+$", "", []string{"a_7"}, []string{"é"}},
	{"^[[:graph:]]+$", "", []string{"a!"}, []string{" ", "é"}},
	{"^[[:print:]]+$", "", []string{"a ! "}, []string{"\t", "é"}},
	{"^[[:cntrl:]]+$", "", []string{"\x01\x7f"}, []string{"a", "\u0085"}},
	{"^[[:xdigit:]]+$", "", []string{"aF0"}, []string{"g"}},
	{"^k$", "i", []string{"k", "K", "\u212a"}, []string{"x"}},
	{"^s$", "i", []string{"s", "S", "\u017f"}, []string{"x"}},
	{"^[k]$", "i", []string{"k", "K", "\u212a"}, []string{"x"}},
	{"^[^k]$", "i", []string{"x"}, []string{"k", "K", "\u212a"}},
	{"^[a-z]$", "i", []string{"q", "Q", "\u212a", "\u017f"}, []string{"é"}},
	{"^\\w$", "i", []string{"k"}, []string{"\u212a"}},
	{"^[\\w]$", "i", []string{"k"}, []string{"\u212a"}},
	{"^é$", "i", []string{"é", "É"}, []string{"e"}},
	{"^ß$", "i", []string{"ß"}, []string{"ss", "S"}},
	{"^σ$", "i", []string{"σ", "Σ", "ς"}, nil},
	{"^[α-ω]$", "i", []string{"Ω", "\u2126", "ς"}, []string{"a"}},
	{"^я$", "i", []string{"Я"}, nil},
	{"^µ$", "i", []string{"μ", "Μ", "µ"}, nil},
	{"^ǆ$", "i", []string{"ǅ", "Ǆ"}, nil},
	{"^i$", "i", []string{"i", "I"}, []string{"İ", "ı"}},
	{"^İ$", "i", []string{"İ"}, []string{"i", "I"}},
	{"\\bfoo\\b", "", []string{"a foo b", "éfoo日"}, []string{"afoo", "foo_"}},
	{"o\\Bo", "", []string{"foo"}, []string{"o o"}},
	{"a(?i)b|c", "", []string{"aB", "C", "c"}, []string{"AB"}},
	{"(a(?i)b|c)d", "", []string{"aBd", "Cd"}, []string{"ABd", "CD"}},
	{"(?i:a)b", "", []string{"Ab"}, []string{"AB"}},
	{"(?s).", "", []string{"\n"}, nil},
	{"(?i)a(?-i)b", "", []string{"Ab"}, []string{"aB"}},
	{"(?<n>a)(?P<m1>b)", "", []string{"ab"}, []string{"a"}},
	{"a{2}", "", []string{"aa"}, []string{"a"}},
	{"^a{,2}$", "", []string{"a{,2}"}, []string{"a"}},
	{"^a{x}{$", "", []string{"a{x}{"}, []string{"a"}},
	{"^(a{1,2}){2}$", "", []string{"aa", "aaaa"}, []string{"a", "aaaaa"}},
	{"^a*?b+?c??$", "", []string{"b", "aabbc"}, []string{"a"}},
	{"^(|a)b", "", []string{"b", "ab"}, []string{"c"}},
	{"^(a*){0,9}b", "", []string{"aab", "b"}, []string{"aac"}},
	{"^(?:ab){0,499}c", "", []string{strings.Repeat("ab", 499) + "c"}, []string{strings.Repeat("ab", 500) + "c"}},
	{"^(((((b)?)?)?)?){0,80}$", "", []string{strings.Repeat("b", 80)}, []string{strings.Repeat("b", 81)}},
	{"^(a*?b*?c*?d*?){0,200}$", "", []string{strings.Repeat("b", 100)}, nil},
	{"^(((((((((((((((((((b))))))))))))))))))){0,45}$", "", []string{strings.Repeat("b", 45)}, nil},
	{"^в$", "i", []string{"в", "В"}, []string{"\u1c80"}},
	{"^[\u10d0\uab70]$", "i", []string{"\u10d0", "\uab70"}, []string{"\u1c90", "\u13a0"}},
	{"\\Qa.b\\E+", "", nil, nil}, // refused
	{"\\Qa.b\\E", "", []string{"a.b"}, []string{"axb"}},
	{"\\x41\\x{e9}\\t\\n\\a\\e\\f\\r", "", []string{"Aé\t\n\a\x1b\f\r"}, nil},
	{"a\\/\\.\\-\\_\\ \\#", "", []string{"a/.-_ #"}, nil},
	{"]}", "", []string{"]}"}, nil},
	{"a\\x00b", "", []string{"a\x00b"}, []string{"ab", "a"}},
	{"b", "i", []string{"a\x00b"}, nil},
	{"a$", "", nil, []string{"a\x00b"}},
	{"^[^\\x00-\\x{10FFFF}]?a$", "", []string{"a"}, []string{"ba"}},
	{"a|b|^c$", "", []string{"xa", "c"}, []string{"cd"}},
	{"\n$", "", []string{"\n", "\n\n"}, []string{"a"}},
	{"a\n$", "", []string{"a\n", "a\n\n"}, []string{"a"}},
	{"^a$", "m", []string{"a", "x\na\ny", "x\na"}, []string{"xa"}},
	{"\r$", "", []string{"a\r", "a\r\n"}, nil},
	{"^b", "m", nil, []string{"a\rb"}},
}

func TestRegexes(t *testing.T) {
	for _, c := range regexCases {
		l, err := newRegex(c.pattern, c.options, place{})
		if err != nil {
			if len(c.yes)+len(c.no) > 0 {
				t.Error(err)
			}
			continue
		}
		for i, text := range slices.Concat(c.yes, c.no) {
			v := value{Type: bson.TypeString, Value: append(append(make([]byte, 4), text...), 0)}
			if got := l.test(v); got != (i < len(c.yes)) {
				t.Errorf("/%s/%s: %v for %q", c.pattern, c.options, got, text)
			}
		}
	}
}

// TestRefusedRegexes: what Go's engine cannot do as servers do is refused, and the
// error says what.
func TestRefusedRegexes(t *testing.T) {
	for pattern, says := range map[string]string{
		"a(?=b)": "lookaround", "a(?!b)": "lookaround", "(?<=a)b": "looking behind", "(?<!a)b": "looking behind",
		"(a)\\1": "backreferences",
		"a++":    "possessive", "a{2}+": "possessive", "(?>a)": "atomic", "(?R)": "recursion", "(?(1)a|b)": "conditions",
		"(*UCP)a": "verbs",
		"\\p{L}":  `\p`, "\\G": `\G`, "\\Ka": `\K`, "\\R": `\R`, "\\h": `\h`, "\\v": `\v`, "\\X": `\X`, "\\C": `\C`,
		"\\0": `\0`,
		"a**": "behind a quantifier", "*a": "nothing to repeat", "a{2}{3}": "behind a quantifier", "(a": "no )", "a)": "no (",
		"[a": "no ]", "\\": "ends with",
		"a$b": "at the end", "(a$){0,2}b": "at the end", "(ab)*": "repetitions", "(a|b)+c": "repetitions",
		"(?:a?){3,}": "repetitions", "(ab){0,900}": "repetitions", "((a{0,9}){0,90}){0,90}": "repetitions",
		"a$\\z": "at the end", "[[.a.]]": "[:alpha:]", "[[:foo:]]": "[:alpha:]", "[b-a]": "ends before",
		"[[:alpha:]-z]": "behind a class",
		"^*":            "assertion", "\\b+": "assertion", "a{1001}": "up to 1000", "a{5,2}": "up to 1000", "(?U)a": "(?U",
		"(?|a)": "(?|", "(?#a)": "(?#", "\\xq": "hexadecimal",
		"\\x{110000}": "not a character", "\\x{d800}": "not a character", "\xff": "UTF-8", "\\cA": `\c`,
		"(?<a>b)(?P<a>c)": "name a", "a\x00": "NUL", "a\\Qb": "without", "a\\Q": "without", "\\Qa\\": "without",
		"(?x)a # c": "newline", "(?x)#": "newline", "(?--i)a": "(?-", "[a-\\d]": `\d`,
		"\\é": `\é`, strings.Repeat("(", 60) + strings.Repeat(")", 60): "deeper",
	} {
		_, err := newRegex(pattern, "", place{})
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("/%s/: %v, does not say %q", pattern, err, says)
		}
	}
	for pattern, options := range map[string]string{"^": "m", "^$": "m", "a|^\\s*": "m", "a\vb": "x", "a\u2028b": "x",
		"a{b": "x", "a #": "x", "a#\rb": "x", "a": "g", "b": "u"} {
		if _, err := newRegex(pattern, options, place{}); err == nil {
			t.Errorf("/%s/%s is taken", pattern, options)
		}
	}
}
