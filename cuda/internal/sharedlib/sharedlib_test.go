//go:build linux && (amd64 || arm64)

package sharedlib

import (
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
)

// TestLibrary finds and calls functions of the C library.
func TestLibrary(t *testing.T) {
	lib, err := Open("libc.so.6")
	if err != nil {
		t.Skip(err)
	}
	var found struct{ Exit uintptr }
	if err := lib.FindAll("_", &found); err != nil || found.Exit == 0 {
		t.Errorf("_Exit is at %#x: %v", found.Exit, err)
	}
	var missing struct{ Exit, NoSuchFunction uintptr }
	if err := lib.FindAll("_", &missing); err == nil || err.Error() != "libc.so.6 has no _NoSuchFunction" {
		t.Errorf("a function that is not there: %v", err)
	}
	if _, err := Open("lib-that-is-not-there.so"); err == nil {
		t.Error("a library that is not there is opened")
	}
	labs, err := lib.Find("labs")
	if err != nil {
		t.Fatal(err)
	}
	if got := lib.Call(labs, ^uintptr(41)); got != 42 {
		t.Errorf("labs(-42) is %d", got)
	}
	strchr, err := lib.Find("strchr")
	if err != nil {
		t.Fatal(err)
	}
	text := []byte("key=value\x00more")
	for char, want := range map[byte]string{'=': "=value", 'm': ""} {
		r, _, _ := purego.SyscallN(strchr, uintptr(unsafe.Pointer(&text[0])), uintptr(char))
		if got := Text(r); got != want {
			t.Errorf("strchr of %c: got %q, want %q", char, got, want)
		}
	}
}
