package command

import (
	"cmp"
	"errors"
	"flag"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/gorgonia-nsa/nsa/internal/fault"
)

// Explain says err as the program of set: with the program's name and, if it is about fields of a configuration, their
// flags: those that the command line has, or else the first one. flags has the flags whose names are not those of their
// fields, by field. It is an error of the command line, unless the field only names what failed. Call it with defer.
func Explain(err *error, set *flag.FlagSet, flags map[string]string) {
	var f *fault.Field
	if *err == nil || errors.Is(*err, flag.ErrHelp) {
		return
	}
	if !errors.As(*err, new(*explained)) && errors.As(*err, &f) {
		if list := flagsOf(f.Names, set, flags); list != nil {
			last := list[len(list)-1]
			text := f.Problem
			if f.Label == "" {
				text = ofValue(last.Name, last.Value.String(), f.Problem, *err)
			}
			text = "-" + last.Name + " " + text
			for _, one := range slices.Backward(list[:len(list)-1]) {
				text = "-" + one.Name + " " + quoted(one.Value.String()) + " " + text
			}
			*err = &explained{text, *err}
			if f.Err == nil {
				*err = UsageError(*err)
			}
		}
	}
	*err = fault.In(set.Name(), "", *err)
}

// explained is an error that names its flag.
type explained struct {
	text string
	error
}

func (e *explained) Error() string { return e.text }
func (e *explained) Unwrap() error { return e.error }

// flagsOf returns the flags of fields that were given; without any, the first one that is a flag.
func flagsOf(names []string, set *flag.FlagSet, flags map[string]string) (list []*flag.Flag) {
	given, first := map[string]bool{}, (*flag.Flag)(nil)
	set.Visit(func(f *flag.Flag) { given[f.Name] = true })
	for _, name := range names {
		f := set.Lookup(cmp.Or(flags[name], kebab(name)))
		if f != nil && given[f.Name] {
			list = append(list, f)
		}
		if first == nil {
			first = f
		}
	}
	if list == nil && first != nil {
		list = append(list, first)
	}
	return list
}

// kebab returns the usual name of the flag of a field: kv-heads of KVHeads.
func kebab(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		if i > 0 && unicode.IsUpper(r) && (unicode.IsLower(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])) {
			b.WriteByte('-')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// Flag returns err, if it is not nil and no error of a field, as that of a flag's value: "-model nope: no such file or
// directory".
func Flag(name, value string, err error) error {
	if err == nil || errors.As(err, new(*fault.Field)) { // Explain names the flag
		return err
	}
	return &explained{"-" + name + " " + ofValue(name, value, fault.Text(err), err), err}
}

// ofValue returns a value and what is wrong with it, which is the text of err and names the value once.
func ofValue(name, value, text string, err error) string {
	if p := (*fs.PathError)(nil); errors.As(err, &p) && p.Path == value {
		text = strings.Replace(text, p.Error(), p.Err.Error(), 1)
	}
	for _, repeated := range []string{name + " " + value + ": ", value + ": "} {
		text = strings.TrimPrefix(text, repeated)
	}
	return quoted(value) + ": " + text
}

// quoted returns a value as it is typed, between quotes if it is empty or has other characters than letters, digits and
// those of paths.
func quoted(value string) string {
	const longest = 200
	if r := []rune(value); len(r) > longest {
		value = string(r[:longest]) + "..."
	}
	plain := func(r rune) bool {
		return unicode.IsLetter(r) || unicode.IsDigit(r) || strings.ContainsRune("/\\._-+:,=@~", r)
	}
	if value == "" || slices.ContainsFunc([]rune(value), func(r rune) bool { return !plain(r) }) {
		return strconv.Quote(value)
	}
	return value
}
