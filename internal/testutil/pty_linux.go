package testutil

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// OpenTerminal returns the two ends of a terminal of so many columns: what a program writes to terminal is read from
// host.
func OpenTerminal(columns int) (host, terminal *os.File, err error) {
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
	return host, terminal, SetColumns(terminal, columns)
}

// SetColumns changes the width of a terminal.
func SetColumns(terminal *os.File, columns int) error {
	return unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: uint16(columns)})
}
