//go:build unix

package files

import (
	"os"

	"golang.org/x/sys/unix"
)

// mapFile returns the content of a file without reading it, or nil if the system does not map the file.
func mapFile(f *os.File, size int64) []byte {
	if int64(int(size)) != size {
		return nil
	}
	data, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil // empty, or of a file system that maps no files
	}
	return data
}

func unmapFile(data []byte) error {
	if data == nil {
		return nil
	}
	return unix.Munmap(data)
}
