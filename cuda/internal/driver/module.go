package driver

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"unsafe"
)

// Module is a loaded image of kernels. It stays loaded until the device is closed.
type Module struct {
	owned
	h Handle

	mu        sync.Mutex
	functions map[string]*Function
}

// Function is a kernel of a module. Prepare makes its launches.
type Function struct {
	m       *Module
	h       Handle
	name    string
	dynamic int // bytes of dynamic shared memory that Prepare has asked the driver for, guarded by m.mu
}

// LoadModule loads a cubin, a fat binary or PTX. An image without code for the device is an error that says so.
func (d *Device) LoadModule(image []byte) (*Module, error) {
	if len(image) == 0 {
		return nil, d.failed("module", errors.New("the image is empty"))
	}
	m := &Module{functions: map[string]*Function{}}
	m.owned = owned{d: d, name: "module", kept: true, parts: []part{{&m.h, d.fn.ModuleUnload}}}
	return create(m, &m.owned, func() error {
		// The copy is aligned, which an embedded file need not be, and ends with the zero byte that PTX needs.
		text, f := append(bytes.Clone(image), 0), d.fn.ModuleLoadData
		err := d.check(f, f.CallWithPointers(uintptr(unsafe.Pointer(&m.h)), uintptr(unsafe.Pointer(&text[0]))))
		if errors.Is(err, NoBinary) {
			c := d.prop.Capability
			return fmt.Errorf("the image has no code for compute capability %d.%d: %w", c/10, c%10, err)
		}
		return err
	})
}

// Function returns the kernel of the given name. That is the mangled name unless the kernel is declared extern "C". A
// kernel takes one argument, a struct.
func (m *Module) Function(name string) (*Function, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.functions[name]; f != nil {
		return f, nil
	}
	f, text, find := &Function{m: m, name: name}, append([]byte(name), 0), m.d.fn.ModuleGetFunction
	err := m.d.do("kernel "+name, func() error {
		return m.d.check(find, find.CallWithPointers(uintptr(unsafe.Pointer(&f.h)), m.h,
			uintptr(unsafe.Pointer(&text[0]))))
	})
	if err != nil {
		return nil, err
	}
	m.functions[name] = f
	return f, nil
}

// allow lets launches have that much dynamic shared memory. Until the driver is asked for more, a kernel has 48 KB at
// most.
func (f *Function) allow(bytes int) error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if bytes <= f.dynamic {
		return nil
	}
	d := f.m.d
	return d.Do(func() error {
		err := d.call(d.fn.FuncSetAttribute, f.h, FuncMaxDynamicShared, uintptr(bytes))
		if err == nil {
			f.dynamic = bytes
		}
		return err
	})
}
