package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// ask asks the running proxy, over its socket.
func ask(ctx context.Context, dir, path string, query url.Values) ([]byte, error) {
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socketPath(dir))
		},
	}}
	defer client.CloseIdleConnections()
	u := url.URL{Scheme: "http", Host: "fileproxy", Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("does a fileproxy run with -dir %s? %w", dir, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = errors.New(strings.TrimSpace(string(body)))
	}
	return body, err
}

// status prints how the running proxy is doing. It fails if that is not healthy.
func status(ctx context.Context, w io.Writer, dir string, asJSON bool) error {
	body, err := ask(ctx, dir, "/status", nil)
	if err != nil {
		return err
	}
	var r report
	if err := json.Unmarshal(body, &r); err != nil {
		return err
	}
	if asJSON {
		_, err = w.Write(body)
	} else {
		r.write(w, time.Now())
	}
	if err == nil && r.Unhealthy != "" {
		err = errors.New("not healthy")
	}
	return err
}
