package lab

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// An sctpExchange opens an association over a raw socket. Its first answer is the cookie of the INIT ACK;
// further ones are heartbeats over the finished handshake.
type sctpExchange struct {
	raw
	port     uint16
	tag      uint32 // ours: in what the peer sends
	peerTag  uint32 // the peer's: in what we send
	first    Answer
	cookie   string
	finished bool   // the handshake is complete
	token    string // of the heartbeat that is out
	began    time.Time
}

func (n *NetNS) exchangeSCTP(q Query) (exchange, error) {
	if n.kernelSCTP() {
		// One address, or the INIT would list all that the namespace has.
		source := q.Source.Addr()
		if !source.IsValid() {
			var err error
			if source, err = n.sourceFor(q.To); err != nil {
				return nil, err
			}
		}
		if n.owns(source) {
			q.Source = netip.AddrPortFrom(source, q.Source.Port())
			return n.exchangeTCP(q)
		}
	}
	port := q.Source.Port()
	if port == 0 {
		port = ephemeralPort()
	}
	r, err := n.rawClient(q)
	if err != nil {
		return nil, err
	}
	x := &sctpExchange{raw: *r, port: port, tag: newTag(), began: time.Now()}
	if err := x.send(); err != nil {
		x.close()
		return nil, err
	}
	return x, nil
}

// kernelSCTP reports whether the kernel speaks SCTP in the namespace. Then it must do all the talking: it would
// abort what raw sockets negotiate.
func (n *NetNS) kernelSCTP() bool {
	found := false
	_ = n.run(func() error {
		_, err := os.Stat("/proc/thread-self/net/sctp")
		found = err == nil
		return nil
	})
	return found
}

// owns reports whether the namespace has an address.
func (n *NetNS) owns(a netip.Addr) bool {
	fd, err := n.Socket(domain(a), unix.SOCK_DGRAM, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return unix.Bind(fd, sockaddr(netip.AddrPortFrom(a, 0))) == nil
}

func (x *sctpExchange) source() netip.AddrPort { return netip.AddrPortFrom(x.local, x.port) }
func (x *sctpExchange) fingerprint() string    { return fmt.Sprintf("init %d", x.tag) }

// close aborts the association, so that connection tracking forgets it soon.
func (x *sctpExchange) close() {
	if x.peerTag != 0 {
		_ = x.raw.send(x.packet(x.peerTag, sctpChunk{typ: sctpAbort}))
	}
	unix.Close(x.fd)
}

func (x *sctpExchange) packet(tag uint32, c sctpChunk) []byte {
	return sctpPacket{sport: x.port, dport: x.to.Port(), tag: tag, chunk: c}.encode()
}

// send sends whatever the association is waiting to have answered.
func (x *sctpExchange) send() error {
	switch {
	case x.peerTag == 0:
		return x.raw.send(x.packet(0, initChunk(sctpInit, x.tag, "")))
	case !x.finished:
		return x.raw.send(x.packet(x.peerTag, sctpChunk{typ: sctpCookieEcho, value: []byte(x.cookie)}))
	}
	return x.raw.send(x.packet(x.peerTag, sctpChunk{typ: sctpHeartbeat, value: param(sctpParamHeartbeat, x.token)}))
}

func (x *sctpExchange) again() error {
	x.token, x.began = token(), time.Now()
	return x.send()
}

func (x *sctpExchange) wait(ctx context.Context, deadline time.Time) (Answer, bool, error) {
	return x.raw.wait(ctx, deadline, x.send, func(b []byte, refusal *icmpError) (Answer, bool) {
		if refusal != nil {
			return x.refused(b, *refusal)
		}
		p, ok := parseSCTP(b)
		if !ok || p.sport != x.to.Port() || p.dport != x.port {
			return Answer{}, false
		}
		return x.receive(p)
	})
}

// refused judges an ICMP error by the packet that it quotes, of which there may be eight bytes only.
func (x *sctpExchange) refused(quoted []byte, e icmpError) (Answer, bool) {
	if len(quoted) < 4 || binary.BigEndian.Uint16(quoted) != x.port || binary.BigEndian.Uint16(quoted[2:]) != x.to.Port() {
		return Answer{}, false
	}
	return Answer{Verdict: Refused, Err: e.errno, By: e.by, Took: time.Since(x.began)}, true
}

func (x *sctpExchange) receive(p sctpPacket) (Answer, bool) {
	took := time.Since(x.began)
	if p.chunk.typ == sctpAbort && (p.tag == x.tag || p.chunk.flags&sctpTagOfPeer != 0) {
		x.peerTag = 0
		return Answer{Verdict: Refused, Err: unix.ECONNREFUSED, Took: took}, true
	}
	if p.tag != x.tag {
		return Answer{}, false
	}
	switch p.chunk.typ {
	case sctpInitAck:
		if x.peerTag != 0 || len(p.chunk.value) < sctpFixedInit {
			return Answer{}, false
		}
		cookie, _ := paramValue(p.chunk.value[sctpFixedInit:], sctpParamCookie)
		name, peer, _, err := parseLine(cookie)
		if err != nil {
			return Answer{}, false
		}
		x.peerTag, x.cookie = binary.BigEndian.Uint32(p.chunk.value), cookie
		x.first = Answer{Verdict: Answered, Name: name, Peer: peer, Took: took}
		return x.first, true
	case sctpCookieAck:
		if !x.finished {
			x.finished = true
			_ = x.send() // the heartbeat; it is sent again if that failed
		}
	case sctpHeartbeatAck:
		if info, _ := paramValue(p.chunk.value, sctpParamHeartbeat); info == x.token && x.token != "" {
			a := x.first
			a.Took = took
			return a, true
		}
	}
	return Answer{}, false
}
