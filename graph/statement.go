package graph

import (
	"fmt"
	"reflect"
	"unsafe"

	G "gorgonia.org/gorgonia"
)

// statement is what a node without a value asks for.
type statement struct {
	into *G.Value // of gorgonia.Read; nil for gorgonia.Set, which no gorgonia VM acts on either
}

// statementOf returns the statement of a node that is one. Gorgonia's statements have no type, and their ops are not
// exported: the target of a Read is the only field of its op.
func statementOf(n *G.Node) (s statement, ok bool, err error) {
	if n.Type() != nil || n.Op() == nil {
		return statement{}, false, nil
	}
	v := reflect.ValueOf(n.Op())
	if t := v.Type(); t.PkgPath() == reflect.TypeFor[G.ExprGraph]().PkgPath() {
		switch {
		case t.Name() == "letOp":
			return statement{}, true, nil
		case t.Name() == "readOp" && t.NumField() == 1 && t.Field(0).Type == reflect.TypeFor[*G.Value]():
			return statement{into: (*G.Value)(unsafe.Pointer(v.Field(0).Pointer()))}, true, nil
		}
	}
	return statement{}, false, fmt.Errorf("statement of type %T is not known", n.Op())
}
