package terminal

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// openTerminal returns the two ends of a terminal of so many columns: what a program writes to terminal is read from
// host.
func openTerminal(columns int) (host, terminal *os.File, err error) {
	host, err = os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			host.Close()
		}
	}()
	if err := unix.IoctlSetPointerInt(int(host.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, fmt.Errorf("unlock a terminal: %w", err)
	}
	number, err := unix.IoctlGetInt(int(host.Fd()), unix.TIOCGPTN)
	if err != nil {
		return nil, nil, err
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	return host, terminal, setColumns(terminal, columns)
}

// setColumns changes the width of a terminal.
func setColumns(terminal *os.File, columns int) error {
	return unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: uint16(columns)})
}

// TestWidthOfTerminal: the width is that of the terminal now, and 0 if it knows no escape sequences.
func TestWidthOfTerminal(t *testing.T) {
	t.Setenv("TERM", "xterm")
	host, terminal, err := openTerminal(40)
	if err != nil {
		t.Skip("no terminals here: ", err)
	}
	defer host.Close()
	defer terminal.Close()
	require.Equal(t, 40, Width(terminal))
	require.NoError(t, setColumns(terminal, 132))
	require.Equal(t, 132, Width(terminal))
	t.Setenv("TERM", "dumb")
	require.Zero(t, Width(terminal))
}
