package driver

import "unsafe"

// TensorMapBytes is the size of a tensor map.
const TensorMapBytes = 128

// Arguments of cuTensorMapEncodeTiled: values of its enumerations.
const (
	mapUint16      = 1 // CU_TENSOR_MAP_DATA_TYPE_UINT16: any elements of 2 bytes
	mapSwizzle128  = 3 // CU_TENSOR_MAP_SWIZZLE_128B
	mapPromotion   = 3 // CU_TENSOR_MAP_L2_PROMOTION_L2_256B
	boxElements    = 64
	boxAlignment   = 64 // of a tensor map
	boxDims        = 4
	noInterleaving = 0
	zerosOutside   = 0
)

// EncodeTensorMap writes to `to` a tensor map, by which kernels copy boxes of an array of 2-byte elements. The array
// lies at address `at`, a multiple of 16. dims are the lengths of its axes, the fastest one first; the strides of the
// other axes are multiples of 16 bytes. A box has 64 elements along the first axis, box[0] along the second, box[1]
// along the third and 1 along the last one. In shared memory a box has the 128-byte swizzle, and zeros where it is
// outside the array.
func (d *Device) EncodeTensorMap(to []byte, at DevicePtr, dims [4]int64, box [2]int64) error {
	x := new(struct {
		room    [TensorMapBytes + boxAlignment]byte
		dims    [boxDims]uint64
		strides [boxDims - 1]uint64 // in bytes, of all axes but the first
		box     [boxDims]uint32
		steps   [boxDims]uint32
	})
	stride := uint64(2)
	for i, n := range dims {
		if i > 0 {
			x.strides[i-1] = stride
		}
		x.dims[i], x.box[i], x.steps[i] = uint64(n), 1, 1
		stride *= uint64(n)
	}
	x.box[0], x.box[1], x.box[2] = boxElements, uint32(box[0]), uint32(box[1])
	return d.do("tensor map", func() error {
		skip := -uintptr(unsafe.Pointer(&x.room)) % boxAlignment
		f := d.fn.TensorMapEncodeTiled
		err := d.check(f, f.CallWithPointers(uintptr(unsafe.Pointer(&x.room[skip])), mapUint16, boxDims, uintptr(at),
			uintptr(unsafe.Pointer(&x.dims)),
			uintptr(unsafe.Pointer(&x.strides)), uintptr(unsafe.Pointer(&x.box)), uintptr(unsafe.Pointer(&x.steps)),
			noInterleaving, mapSwizzle128, mapPromotion, zerosOutside))
		copy(to[:TensorMapBytes], x.room[skip:])
		return err
	})
}
