package lab

import "errors"

var errNotYet = errors.New("not spoken yet")

func (s *Server) listenSCTP() error                   { return errNotYet }
func (n *NetNS) exchangeSCTP(Query) (exchange, error) { return nil, errNotYet }
