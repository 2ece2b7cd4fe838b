package terminal

import (
	"fmt"
	"html"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gorgonia-nsa/nsa/internal/testutil"
)

// TestPictures writes a picture of the first commands of the README, on terminals of 60 and 80 columns, into the folder
// that NSA_TEST_PICTURES names, as seen from the root of the module: terminal_60.svg and terminal_80.svg.
func TestPictures(t *testing.T) {
	folder := os.Getenv("NSA_TEST_PICTURES")
	if folder == "" {
		t.Skip("NSA_TEST_PICTURES names no folder")
	}
	root := testutil.Must(filepath.Abs("../.."))(t)
	if !filepath.IsAbs(folder) {
		folder = filepath.Join(root, folder)
	}
	require.DirExists(t, folder)
	readme := testutil.Must(os.ReadFile(filepath.Join(root, "README.md")))(t)
	commands := regexp.MustCompile(`(?m)^    (go run \./examples/.*?) +#`).FindAllStringSubmatch(string(readme), -1)
	require.NotEmpty(t, commands)
	for _, columns := range []int{60, 80} {
		home := t.TempDir() // of the runs
		var rows []string
		for _, c := range commands {
			if strings.Contains(c[1], "-preset base") { // needs a GPU
				continue
			}
			program := filepath.Join(home, "program")
			words := strings.Fields(c[1])
			build := exec.CommandContext(t.Context(), "go", "build", "-o", program, words[2])
			build.Dir = root
			require.NoError(t, build.Run())
			rows = append(rows, strings.Split(Wrap("$ "+c[1], columns, 2), "\n")...)
			rows = append(rows, record(t, home, columns, `"$0" `+strings.Join(words[3:], " "), program)...)
			rows = append(rows, "")
		}
		path := filepath.Join(folder, fmt.Sprintf("terminal_%d.svg", columns))
		require.NoError(t, os.WriteFile(path, picture(rows[:len(rows)-1], columns), 0o644))
	}
}

// record runs a command of sh on a terminal and returns what it shows: rows with the bar at about 60 %, if there is a
// bar, and the last rows.
func record(t *testing.T, folder string, columns int, command, program string) (rows []string) {
	host, terminal, err := openTerminal(columns)
	require.NoError(t, err)
	defer host.Close()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", command, program)
	cmd.Dir, cmd.Env = folder, append(os.Environ(), "TERM=xterm")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = terminal, terminal, terminal
	require.NoError(t, cmd.Start())
	require.NoError(t, terminal.Close())
	s, bar := &testutil.Screen{Width: columns}, regexp.MustCompile(`^ 6\d% .*step`)
	block := make([]byte, 1<<12)
	for {
		n, err := host.Read(block) // an error when the program has ended
		testutil.Must(s.Write(block[:n]))(t)
		if lines := s.Lines(); len(rows) == 0 && len(lines) > 0 && bar.MatchString(lines[len(lines)-1]) {
			rows = lines
		}
		if err != nil {
			require.NotErrorIs(t, err, io.EOF)
			break
		}
	}
	require.NoError(t, cmd.Wait(), s.Lines())
	require.Zero(t, s.Broken)
	const most = 16
	last := s.Lines()
	if len(rows) > 0 {
		last = last[len(rows)-1:]
	}
	if len(last) > most {
		last = append([]string{"..."}, last[len(last)-most:]...)
	} else if len(rows) > 0 {
		last = append([]string{"..."}, last...)
	}
	return append(rows, last...)
}

// picture returns rows as an SVG, dark on white.
func picture(rows []string, columns int) []byte {
	const size, column, row, margin = 13, 7.8, 17, 12
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %d" font-family="ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="%d">`+"\n",
		float64(columns)*column+2*margin, len(rows)*row+2*margin, size)
	b.WriteString(`<rect width="100%" height="100%" rx="6" fill="#fff" stroke="#d0d0d0"/>` + "\n")
	for i, text := range rows {
		if text == "" {
			continue
		}
		fill := "#24292f"
		if strings.HasPrefix(text, "$ ") {
			fill = "#0550ae"
		}
		fmt.Fprintf(&b, `<text x="%d" y="%d" fill="%s" xml:space="preserve" textLength="%g" lengthAdjust="spacingAndGlyphs">%s</text>`+"\n",
			margin, margin+(i+1)*row-4, fill, float64(Columns(text))*column, html.EscapeString(text))
	}
	b.WriteString("</svg>\n")
	return []byte(b.String())
}
