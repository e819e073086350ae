package ipvs

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/headgate/headgate/model"
)

// An op is one request to the kernel. Each stands alone: there is no transaction over several.
type op struct {
	kind   opKind
	key    virtualKey
	spec   virtualSpec
	server netip.AddrPort
	weight uint32
	// leaving and until are for the record.
	leaving bool
	until   time.Time
	// vip is made local, with src as the source address towards it, if valid.
	vip, src netip.Addr
	owner    model.ServiceName
}

type opKind uint8

const (
	addVirtual opKind = iota
	editVirtual
	delVirtual
	addServer
	editServer
	delServer
	addRoute
	editRoute
	delRoute
)

func (k opKind) adds() bool    { return k == addVirtual || k == addServer || k == addRoute }
func (k opKind) deletes() bool { return k == delVirtual || k == delServer || k == delRoute }

// String says what is asked for, in the words of ipvsadm and ip.
func (o *op) String() string {
	at := fmt.Sprintf("%s %s", o.key.proto, o.key.at)
	switch o.kind {
	case addVirtual, editVirtual:
		return fmt.Sprintf("virtual service %s, scheduler %s", at, o.spec.scheduler)
	case delVirtual:
		return "deleting virtual service " + at
	case addServer, editServer:
		return fmt.Sprintf("virtual service %s, real server %s, weight %d", at, o.server, o.weight)
	case delServer:
		return fmt.Sprintf("virtual service %s, deleting real server %s", at, o.server)
	case delRoute:
		return fmt.Sprintf("deleting route local %s", o.vip)
	default:
		return fmt.Sprintf("route local %s", o.vip)
	}
}
