// Command prog writes to both of its streams and exits with status 7.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Printf("{\"args\":%q}\n", os.Args[1:])
	fmt.Fprintln(os.Stderr, "a word to the side")
	os.Exit(7)
}
