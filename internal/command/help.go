package command

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/gorgonia-nsa/nsa/internal/terminal"
)

// NewFlags returns the flags of the program in a folder of this module, such as examples/train. about says what it does, in sentences.
// examples are lines "ARGUMENTS # COMMENT". All this is part of the help.
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
		_, _ = io.WriteString(w, terminal.Wrap(b.String(), columns, 0)) // Help sees an error
	}
	return set
}

// helpColumns is the width of a help that is not written to a terminal.
const helpColumns = 80

// describe returns the lines about a flag.
func describe(f *flag.Flag) string {
	value, usage := flag.UnquoteUsage(f)
	if f.DefValue != "" && f.DefValue != "false" {
		usage += " (" + f.DefValue + ")"
	}
	return fmt.Sprintf("  %s\n      %s\n", strings.TrimSpace("-"+f.Name+" "+value), usage)
}

// Help writes what a program does, how it is called, examples and its flags to w.
func Help(set *flag.FlagSet, w io.Writer) error {
	h := &helpWriter{Writer: w}
	set.SetOutput(h)
	defer set.SetOutput(io.Discard)
	if set.Usage != nil {
		set.Usage()
	} else {
		set.PrintDefaults()
	}
	if h.err != nil {
		return fmt.Errorf("%s: -help: %w", set.Name(), h.err)
	}
	return nil
}

// helpWriter keeps the first error of writing, which package flag does not return.
type helpWriter struct {
	io.Writer
	err error
}

func (h *helpWriter) Write(p []byte) (int, error) {
	n, err := h.Writer.Write(p)
	if h.err == nil {
		h.err = err
	}
	return n, err
}

// Columns implements what terminal.Width asks.
func (h *helpWriter) Columns() int { return terminal.Width(h.Writer) }

// Parse parses the arguments of a program that takes flags alone. After -help it writes Help to help and returns flag.ErrHelp, or the error
// of writing. Any other error is one line and marked by WrongUse.
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
		return WrongUse(fmt.Errorf("%s: %w (-help lists all flags)", set.Name(), err))
	}
	return nil
}
