// Puts small values into an etcd cluster from a number of callers in one process, each waiting for its answer before
// the next, and prints one line of JSON: what etcd's users get for small replicated writes.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func main() {
	endpoints := flag.String("endpoints", "", "comma-separated client addresses")
	callers := flag.Int("callers", 1, "concurrent callers")
	puts := flag.Int("puts", 2000, "puts over all callers")
	size := flag.Int("size", 64, "bytes of a value")
	flag.Parse()
	client, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(*endpoints, ","), DialTimeout: 10 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	value, share := strings.Repeat("v", *size), *puts / *callers
	run := func(prefix string, count int) []time.Duration {
		took := make([]time.Duration, *callers*count)
		var all sync.WaitGroup
		for caller := range *callers {
			all.Add(1)
			go func() {
				defer all.Done()
				for i := range count {
					begun := time.Now()
					if _, err := client.Put(context.Background(), fmt.Sprintf("%s-%d-%d", prefix, caller, i), value); err != nil {
						log.Fatal(err)
					}
					took[caller*count+i] = time.Since(begun)
				}
			}()
		}
		all.Wait()
		return took
	}
	run("warm", 1+200 / *callers)
	begun := time.Now()
	took := run("put", share)
	seconds := time.Since(begun).Seconds()
	slices.Sort(took)
	milliseconds := func(part float64) float64 { return took[int(part*float64(len(took)-1))].Seconds() * 1e3 }
	if err := json.NewEncoder(os.Stdout).Encode(map[string]float64{
		"per_s": float64(len(took)) / seconds, "p50_ms": milliseconds(0.5), "p99_ms": milliseconds(0.99),
	}); err != nil {
		log.Fatal(err)
	}
}
