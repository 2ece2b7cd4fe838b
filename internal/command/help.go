package command

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/gorgonia-nsa/nsa/internal/terminal"
)

// AddFlag adds a flag that writes to p, a *string, *bool, *int, *uint64, *float64 or flag.Value. Its default is the value
// there. Another type adds none.
func AddFlag(set *flag.FlagSet, p any, name, help string) {
	switch p := p.(type) {
	case *string:
		set.StringVar(p, name, *p, help)
	case *bool:
		set.BoolVar(p, name, *p, help)
	case *int:
		set.IntVar(p, name, *p, help)
	case *uint64:
		set.Uint64Var(p, name, *p, help)
	case *float64:
		set.Float64Var(p, name, *p, help)
	case flag.Value:
		set.Var(p, name, help)
	}
}

// NewFlags returns the flags of the program in a folder of this module, such as examples/train. about says what it
// does, in sentences. examples are lines "ARGUMENTS # COMMENT". All this is part of the help.
func NewFlags(folder, about, examples string) *flag.FlagSet {
	set := flag.NewFlagSet(path.Base(folder), flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.Usage = func() {
		w := set.Output()
		columns := terminal.Width(w)
		if columns == 0 {
			columns = helpColumns
		}
		var b strings.Builder
		fmt.Fprintf(&b, "%s\n\nUsage: go run ./%s [FLAGS]\n\n", about, folder)
		for example := range strings.Lines(strings.TrimSpace(examples)) {
			args, comment, _ := strings.Cut(strings.TrimSpace(example), "# ")
			fmt.Fprintf(&b, "  go run ./%s %s\n      %s\n", folder, strings.TrimSpace(args), comment)
		}
		fmt.Fprintf(&b, "\nFlags, with their defaults in brackets:\n")
		set.VisitAll(func(f *flag.Flag) { b.WriteString(describe(f)) })
		_, _ = io.WriteString(w, terminal.Wrap(b.String(), columns, 0))
	}
	return set
}

// helpColumns is the width of a help that is not written to a terminal.
const helpColumns = 80

func describe(f *flag.Flag) string {
	value, usage := flag.UnquoteUsage(f)
	if f.DefValue != "" && f.DefValue != "false" {
		usage += " (" + f.DefValue + ")"
	}
	return fmt.Sprintf("  %s\n      %s\n", strings.TrimSpace("-"+f.Name+" "+value), usage)
}

// Help writes what a program does, how it is called, examples and its flags to w.
func Help(set *flag.FlagSet, w io.Writer) error {
	text := &helpText{w: w} // package flag does not return errors of writing
	set.SetOutput(text)
	defer set.SetOutput(io.Discard)
	set.Usage()
	if _, err := w.Write(text.Bytes()); err != nil {
		return fmt.Errorf("%s: -help: %w", set.Name(), err)
	}
	return nil
}

// helpText is a help that w will show.
type helpText struct {
	bytes.Buffer
	w io.Writer
}

// Columns implements what terminal.Width asks.
func (h *helpText) Columns() int { return terminal.Width(h.w) }

// Parse parses the arguments of a program that takes flags alone. After -help it writes Help to help and returns
// flag.ErrHelp, or the error of writing. Any other error is one line and marked by UsageError.
func Parse(set *flag.FlagSet, args []string, help io.Writer) error {
	set.SetOutput(io.Discard)
	err := set.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		if wrong := Help(set, help); wrong != nil {
			return wrong
		}
		return err
	case err == nil && set.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", set.Arg(0))
	}
	if err != nil {
		return UsageError(fmt.Errorf("%s: %w (-help lists all flags)", set.Name(), err))
	}
	return nil
}
