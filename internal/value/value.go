// Package value answers small questions about Gorgonia's values, which several packages ask.
package value

import (
	"reflect"

	"gorgonia.org/tensor"
)

// IsNil reports whether v is nil, or holds a pointer or a function that is nil, such as what came with an error.
func IsNil(v any) bool {
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Pointer, reflect.Func:
		return r.IsNil()
	}
	return false
}

// TypeName returns the name of an element type, "none" for the zero value.
func TypeName(dt tensor.Dtype) string {
	if dt.Type == nil {
		return "none"
	}
	return dt.Name()
}
