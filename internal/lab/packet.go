package lab

import "encoding/binary"

func nativeUint32(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }
