package kernels

import (
	"reflect"
	"testing"
	"unsafe"
)

// TestAttentionKernelsAreInTheBinaries looks up every attention kernel that Go launches, with the size of its argument.
func TestAttentionKernelsAreInTheBinaries(t *testing.T) {
	c, err := load()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	var visit func(v reflect.Value, size uintptr)
	visit = func(v reflect.Value, size uintptr) {
		if v.Kind() != reflect.String {
			for i := range v.Len() {
				visit(v.Index(i), size)
			}
			return
		}
		if v.Len() == 0 { // of a type that has no such kernel
			return
		}
		seen++
		image, err := ImageOf(v.String())
		if err != nil {
			t.Error(err)
			return
		}
		if got := c.manifest.Units[image].Kernels[v.String()].Params; !reflect.DeepEqual(got, []int{int(size)}) {
			t.Errorf("%s takes arguments of %v bytes, Go has one of %d", v, got, size)
		}
	}
	v := reflect.ValueOf(attentionNames)
	for i := range v.NumField() {
		size := unsafe.Sizeof(attentionParams{})
		if name := v.Type().Field(i).Name; name == "selectBlocks" || name == "matrixSelectBlocks" {
			size = unsafe.Sizeof(selectParams{})
		}
		visit(v.Field(i), size)
	}
	if seen < 70 {
		t.Errorf("only %d kernels", seen)
	}
}
