package kernels

import (
	"fmt"
	"slices"
	"strings"

	"gorgonia.org/tensor"

	"github.com/gorgonia-nsa/nsa/graph"
	"github.com/gorgonia-nsa/nsa/ops/spec"
)

// Types names the operands of an entry and says which types they may have:
//
//	In(Float("q", "k", "v"), Documents()).Out(Float("o"), Float32("lse"))
type Types struct{ in, out Operands }

// Operands is a part of Types: some inputs or outputs, in their order.
type Operands []operandRule

// operandRule says which types an operand may have.
type operandRule struct {
	name     string
	rule     rule
	repeated bool // any number of operands
}

type rule string // in texts

const (
	isFloat      rule = "float"
	isHalf       rule = "half"
	isOrDelta    rule = "float or delta"
	isMixed      rule = "mixed"
	isFloat32    rule = "float32"
	isWeightGrad rule = "weight gradient"
	isInt32      rule = "int32"
	isDocuments  rule = "table or none"
	isAny        rule = "any"
)

// Float names operands that are all float32, or all of one type of half precision: of that if activations are stored in
// it.
func Float(names ...string) Operands { return named(isFloat, names) }

// Half names operands like those of Float, but in half precision only.
func Half(names ...string) Operands { return named(isHalf, names) }

// FloatOrDelta names an operand like those of Float. If it has three axes, as the delta has that some gradients of
// attention take instead of o, it is float32.
func FloatOrDelta(name string) Operands { return named(isOrDelta, []string{name}) }

// Mixed names operands that are float32 or of half precision, each as it comes. An output is float32 if a Mixed input
// is.
func Mixed(names ...string) Operands { return named(isMixed, names) }

// Float32 names operands of float32.
func Float32(names ...string) Operands { return named(isFloat32, names) }

// WeightGrad names operands that are float32 even if activations are stored in half precision. Half precision is
// accepted, too.
func WeightGrad(names ...string) Operands { return named(isWeightGrad, names) }

// Int32 names operands of int32.
func Int32(names ...string) Operands { return named(isInt32, names) }

// Documents is a table of packed documents or no operand; for a spec.Startable it may also be the start of the queries.
// The table is Call.Documents and the start Call.Starts, neither is in Call.In.
func Documents() Operands { return named(isDocuments, []string{"documents"}) }

// Any names operands of any type.
func Any(names ...string) Operands { return named(isAny, names) }

func named(r rule, names []string) Operands {
	list := make(Operands, len(names))
	for i, name := range names {
		list[i] = operandRule{name: name, rule: r}
	}
	return list
}

// Repeated returns the operands with any number of operands in the place of the last one. Two such lists in the inputs,
// or in the outputs, are equally long.
func (o Operands) Repeated() Operands {
	o = slices.Clone(o)
	o[len(o)-1].repeated = true
	return o
}

// In returns Types with inputs. Out adds the outputs.
func In(lists ...Operands) Types { return Types{in: slices.Concat(lists...)} }

// Out returns t with outputs.
func (t Types) Out(lists ...Operands) Types { return Types{t.in, slices.Concat(lists...)} }

// String lists the operands with their types, such as "q k v float, documents table or none -> o float, lse float32".
func (t Types) String() string { return t.in.String() + " -> " + t.out.String() }

func (o Operands) String() string {
	var b strings.Builder
	for i, x := range o {
		b.WriteString(x.name)
		if x.repeated {
			b.WriteString("...")
		}
		switch {
		case i == len(o)-1:
			fmt.Fprintf(&b, " %s", x.rule)
		case o[i+1].rule == x.rule:
			b.WriteString(" ")
		default:
			fmt.Fprintf(&b, " %s, ", x.rule)
		}
	}
	return b.String()
}

// takesDocuments reports whether the entry takes a table of documents or a start, and the call has one.
func (t Types) takesDocuments(s graph.Call) bool {
	takes := slices.ContainsFunc(t.in, func(o operandRule) bool { return o.rule == isDocuments })
	_, start := spec.StartOf(s.Spec, s.In)
	return takes && (start || spec.HasDocuments(s.In))
}

// rulesOf returns the rule of each operand of a call. ok is false if the call has other numbers of operands.
func (t Types) rulesOf(s graph.Call) (in, out Operands, ok bool) {
	in = t.in
	if !t.takesDocuments(s) {
		in = slices.DeleteFunc(slices.Clone(in), func(o operandRule) bool { return o.rule == isDocuments })
	}
	in, inOK := in.expand(len(s.In))
	out, outOK := t.out.expand(len(s.Out))
	for i := range min(len(in), len(s.In)) {
		if in[i].rule == isOrDelta {
			in[i].rule = isFloat
			if len(s.In[i].Shape) == 3 {
				in[i].rule = isFloat32
			}
		}
	}
	return in, out, inOK && outOK
}

// expand returns n operands, if that is possible: each repeated one as often as needed.
func (o Operands) expand(n int) (all Operands, ok bool) {
	repeated := 0
	for _, x := range o {
		if x.repeated {
			repeated++
		}
	}
	count := max(0, n-(len(o)-repeated)) / max(1, repeated)
	for _, x := range o {
		if x.repeated {
			all = append(all, slices.Repeat(Operands{x}, count)...)
		} else {
			all = append(all, x)
		}
	}
	return all, len(all) == n
}

// maxElements bounds the elements of an operand, so that offsets in bytes fit 64 bits.
const maxElements = 1 << 56

// check refuses a call whose operands do not have these types. It returns the type of the Float and Half operands.
func (t Types) check(s graph.Call) (Type, error) {
	if s.Spec != nil && spec.HasDocuments(s.In) && !t.takesDocuments(s) {
		return 0, graph.Refuse(graph.ReasonDocuments, "no kernel for packed documents")
	}
	in, out, ok := t.rulesOf(s)
	if !ok && len(s.In) > 0 && s.In[0].Dtype == tensor.Float64 {
		_, err := TypeOf(tensor.Float64)
		return 0, err
	}
	if !ok {
		return 0, graph.Refuse(graph.ReasonShape, "got %d inputs and %d outputs, want %v", len(s.In), len(s.Out), t)
	}
	rules, operands := slices.Concat(in, out), slices.Concat(s.In, s.Out)
	common, err := commonType(rules, operands)
	if err != nil {
		return 0, err
	}
	for i, o := range operands {
		if !rules[i].takes(o.Dtype, common) {
			return 0, graph.Refuse(graph.ReasonType, "%s is %v, want %s", rules[i].name, o, rules[i].rule)
		}
		n := int64(1)
		for _, size := range o.Shape {
			if size < 1 || n > maxElements/int64(size) {
				return 0, graph.Refuse(graph.ReasonSize, "%s is %v, want 1 to 2^56 elements", rules[i].name, o)
			}
			n *= int64(size)
		}
	}
	return max(common, 0), nil // F32 if there are none
}

// commonType returns the one type of the operands that are Float, Half, or Mixed in half precision; -1 if there are
// none. It refuses operands of several types, and float32 for Half.
func commonType(rules Operands, operands []spec.Operand) (Type, error) {
	common, first := Type(-1), ""
	for i, o := range operands {
		name, rule := rules[i].name, rules[i].rule
		if rule != isFloat && rule != isHalf && rule != isMixed {
			continue
		}
		switch typ, err := TypeOf(o.Dtype); {
		case err != nil:
			return 0, err
		case rule == isMixed && typ == F32:
			continue
		case common >= 0 && typ != common:
			return 0, graph.Refuse(graph.ReasonType, "%s is %v, %s is %v, want one type", first, common, name, typ)
		case typ == F32 && rule == isHalf:
			return 0, graph.Refuse(graph.ReasonType, "%s is %v, want half precision", name, typ)
		case common < 0:
			common, first = typ, name
		}
	}
	return common, nil
}

// takes reports whether an operand may have type dt. commonType has checked Float, Half and Mixed operands.
func (o operandRule) takes(dt tensor.Dtype, common Type) bool {
	switch o.rule {
	case isFloat32:
		return dt == tensor.Float32
	case isWeightGrad:
		typ, err := TypeOf(dt)
		return err == nil && (typ == F32 || typ == common || common < 0)
	case isInt32, isDocuments:
		return dt == tensor.Int32
	}
	return true
}

// Stored returns the types that the operands of a call should have if activations are stored in half.
func (t Types) Stored(s graph.Call, half tensor.Dtype) (in, out []tensor.Dtype) {
	inRules, outRules, _ := t.rulesOf(s)
	wide := false // a Mixed input is float32
	for i, o := range s.In[:min(len(s.In), len(inRules))] {
		wide = wide || inRules[i].rule == isMixed && o.Dtype == tensor.Float32
	}
	stored := func(rules Operands, operands []spec.Operand, outputs bool) []tensor.Dtype {
		types := make([]tensor.Dtype, len(operands))
		for i, o := range operands {
			types[i] = o.Dtype
			if o.Dtype != tensor.Float32 && !spec.IsHalf(o.Dtype) {
				continue
			}
			rule := isFloat32
			if i < len(rules) {
				rule = rules[i].rule
			}
			switch {
			case rule == isAny || rule == isMixed && !outputs: // keeps its type
			case rule == isFloat || rule == isHalf || rule == isMixed && !wide:
				types[i] = half
			default:
				types[i] = tensor.Float32
			}
		}
		return types
	}
	return stored(inRules, s.In, false), stored(outRules, s.Out, true)
}

// Type is the storage type of an array's elements. Sums are float32 or wider for every Type.
type Type int32

// Storage types; the values are those of common.cuh.
const (
	F32  Type = iota // float
	BF16             // __nv_bfloat16
	F16              // __half
)

var typeNames = [...]string{F32: "f32", BF16: "bf16", F16: "f16"}

// Bytes returns the size of an element.
func (t Type) Bytes() int {
	if t == F32 {
		return 4
	}
	return 2
}

// Lanes returns the number of elements in 16 bytes.
func (t Type) Lanes() int64 { return int64(16 / t.Bytes()) }

// String returns f32, bf16 or f16, the suffix of kernel names.
func (t Type) String() string {
	if t < 0 || int(t) >= len(typeNames) {
		return fmt.Sprintf("Type(%d)", int32(t))
	}
	return typeNames[t]
}

// Name returns the kernel of an op for the type: nsa_rope_bf16 of "rope".
func (t Type) Name(op string) string { return "nsa_" + op + "_" + t.String() }

// TypeOf returns the storage type of float32, spec.BFloat16 and spec.Float16.
func TypeOf(dt tensor.Dtype) (Type, error) {
	switch dt {
	case tensor.Float32:
		return F32, nil
	case spec.BFloat16:
		return BF16, nil
	case spec.Float16:
		return F16, nil
	}
	return 0, graph.Refuse(graph.ReasonType, "got %v, want float32 or half precision", dt)
}
