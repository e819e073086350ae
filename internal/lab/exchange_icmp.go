package lab

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// An icmpExchange sends echo requests over a raw socket. The kernel of the other side answers.
type icmpExchange struct {
	raw
	id    uint16
	token string
	began time.Time
}

func (n *NetNS) exchangeICMP(q Query) (*icmpExchange, error) {
	r, err := n.rawClient(q)
	if err != nil {
		return nil, err
	}
	x := &icmpExchange{raw: *r, id: uint16(rand.Uint32()), token: token(), began: time.Now()}
	if err := x.send(); err != nil {
		x.close()
		return nil, err
	}
	return x, nil
}

func (x *icmpExchange) source() netip.AddrPort { return netip.AddrPortFrom(x.local, 0) }
func (x *icmpExchange) close()                 { unix.Close(x.fd) }
func (x *icmpExchange) fingerprint() string    { return "echo " + x.token }

func (x *icmpExchange) again() error { return x.send() }

// message is one echo request; the kernel fills in the checksum of ICMPv6 alone.
func (x *icmpExchange) message() []byte {
	typ := byte(icmpEcho)
	if x.v6() {
		typ = icmp6Echo
	}
	b := []byte{typ, 0, 0, 0, 0, 0, 0, 1}
	binary.BigEndian.PutUint16(b[4:], x.id)
	b = append(b, x.token...)
	if !x.v6() {
		binary.BigEndian.PutUint16(b[2:], checksum(nil, b))
	}
	return b
}

func (x *icmpExchange) send() error { return x.raw.send(x.message()) }

func (x *icmpExchange) wait(ctx context.Context, deadline time.Time) (Answer, bool, error) {
	return x.raw.wait(ctx, deadline, x.send, func(b []byte, refusal *icmpError) (Answer, bool) {
		if len(b) < 8 || binary.BigEndian.Uint16(b[4:]) != x.id || string(b[8:]) != x.token {
			return Answer{}, false
		}
		took := time.Since(x.began)
		if refusal != nil {
			return Answer{Verdict: Refused, Err: refusal.errno, By: refusal.by, Took: took}, true
		}
		if b[0] != icmpEchoReply && b[0] != icmp6EchoReply {
			return Answer{}, false
		}
		return Answer{Verdict: Answered, Name: x.to.Addr().String(), Took: took}, true
	})
}
