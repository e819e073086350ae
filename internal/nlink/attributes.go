package nlink

import (
	"encoding/binary"
	"fmt"
	"io"

	"golang.org/x/sys/unix"
)

// An Attribute is one attribute of a message.
type Attribute struct {
	Type uint16 // without the flags for nesting and byte order
	Data []byte // shared with the message: valid until the next one is received
}

// Attributes calls each for every attribute in b, until that returns an error. Attributes that are cut off are an error.
func Attributes(b []byte, each func(a Attribute) error) error {
	const flags = unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER
	for len(b) >= AttrLen {
		size := int(binary.NativeEndian.Uint16(b))
		if size < AttrLen || size > len(b) {
			return fmt.Errorf("attribute of %d bytes in %d: %w", size, len(b), io.ErrUnexpectedEOF)
		}
		if err := each(Attribute{Type: binary.NativeEndian.Uint16(b[2:]) &^ flags, Data: b[AttrLen:size]}); err != nil {
			return err
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	if len(b) > 0 {
		return fmt.Errorf("%d bytes are left: %w", len(b), io.ErrUnexpectedEOF)
	}
	return nil
}

// Host16 returns a number in the machine's byte order; 0 if there are too few bytes.
func (a Attribute) Host16() uint16 {
	if len(a.Data) < 2 {
		return 0
	}
	return binary.NativeEndian.Uint16(a.Data)
}

// Host32 returns a number in the machine's byte order; 0 if there are too few bytes.
func (a Attribute) Host32() uint32 {
	if len(a.Data) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(a.Data)
}

// Net16 returns a number in network byte order; 0 if there are too few bytes.
func (a Attribute) Net16() uint16 {
	if len(a.Data) < 2 {
		return 0
	}
	return binary.BigEndian.Uint16(a.Data)
}

// Text returns a string without the NUL behind it.
func (a Attribute) Text() string {
	for i, c := range a.Data {
		if c == 0 {
			return string(a.Data[:i])
		}
	}
	return string(a.Data)
}
