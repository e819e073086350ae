package nftables

// InNetNS runs f on a thread inside the network namespace of a descriptor, for the tests' own use of stock tools.
func InNetNS(netns int, f func() error) error {
	file, err := openNetNS(netns)
	if err != nil {
		return err
	}
	defer file.Close()
	p := &Programmer{netns: file}
	return p.inNetNS(f)
}
