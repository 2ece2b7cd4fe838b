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
	m    *Module
	h    Handle
	name string

	maxThreads int // of a block, with the registers that the kernel uses
	registers  int // of a thread
	static     int // bytes of static shared memory of a block
	dynamic    int // bytes of dynamic shared memory that a launch may have so far, guarded by m.mu
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

// Function returns the kernel of the given name. That is the mangled name unless the kernel is declared extern "C". A kernel takes
// one argument, a struct.
func (m *Module) Function(name string) (*Function, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.functions[name]; f != nil {
		return f, nil
	}
	f := &Function{m: m, name: name}
	if err := m.d.do("kernel "+name, f.lookUp); err != nil {
		return nil, err
	}
	m.functions[name] = f
	return f, nil
}

// lookUp asks the driver for the kernel and its properties.
func (f *Function) lookUp() error {
	d, name := f.m.d, append([]byte(f.name), 0)
	find := d.fn.ModuleGetFunction
	err := d.check(find, find.CallWithPointers(uintptr(unsafe.Pointer(&f.h)), f.m.h, uintptr(unsafe.Pointer(&name[0]))))
	if err != nil {
		return err
	}
	for _, a := range []struct {
		of uintptr
		to *int
	}{{FuncMaxThreads, &f.maxThreads}, {FuncSharedBytes, &f.static}, {FuncRegisters, &f.registers}, {FuncMaxDynamicShared, &f.dynamic}} {
		if *a.to, err = d.number(d.fn.FuncGetAttribute, a.of, f.h); err != nil {
			return err
		}
	}
	return nil
}

// allow lets launches have that much dynamic shared memory. Until the driver is asked for more, a kernel has 48 KB at most.
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
