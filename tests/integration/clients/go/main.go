// Command reader sends one command as a tenant's program and prints the tenant's facts until the command's answer.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

type cancelJob struct {
	JobID  string `json:"job_id"`
	Tenant string `json:"tenant"`
	Reason string `json:"reason"`
}

type commandRefused struct {
	CommandID string `json:"command_id"`
	Code      string `json:"code"`
	Message   string `json:"message"`
}

func main() {
	tenant, jobID := os.Args[1], os.Args[2]
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := kgo.NewClient(
		kgo.SeedBrokers(os.Getenv("RETUNE_KAFKA_BOOTSTRAP")),
		kgo.SASL(scram.Auth{
			User: os.Getenv("RETUNE_TENANT_KAFKA_USERNAME"),
			Pass: os.Getenv("RETUNE_TENANT_KAFKA_PASSWORD"),
		}.AsSha512Mechanism()),
		kgo.ConsumeTopics("tenant."+tenant+".events"),
		kgo.ConsumerGroup("tenant-"+tenant+".go"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	exitOn(err)
	defer client.Close()
	exitOn(client.ProduceSync(ctx, command(tenant, jobID)).FirstErr())
	for {
		fetches := client.PollFetches(ctx)
		exitOn(fetches.Err())
		for _, record := range fetches.Records() {
			eventType := header(record, "ce_type")
			fmt.Println(eventType, header(record, "ce_sequence"), string(record.Key))
			if eventType == "retune.CommandRefused.v1" && string(record.Key) == jobID {
				var refused commandRefused
				exitOn(json.Unmarshal(record.Value, &refused))
				fmt.Println(refused.CommandID, refused.Code)
				return
			}
		}
	}
}

func command(tenant, jobID string) *kgo.Record {
	value, err := json.Marshal(cancelJob{JobID: jobID, Tenant: tenant, Reason: "user"})
	exitOn(err)
	return &kgo.Record{
		Topic: "tenant." + tenant + ".commands",
		Key:   []byte(jobID),
		Value: value,
		Headers: []kgo.RecordHeader{
			{Key: "content-type", Value: []byte("application/json")},
			{Key: "ce_specversion", Value: []byte("1.0")},
			{Key: "ce_id", Value: []byte("go-" + jobID)},
			{Key: "ce_type", Value: []byte("retune.CancelJob.v1")},
			{Key: "ce_source", Value: []byte("/tests/clients/go")},
			{Key: "ce_time", Value: []byte(time.Now().UTC().Format(time.RFC3339Nano))},
		},
	}
}

func header(record *kgo.Record, name string) string {
	for _, each := range record.Headers {
		if each.Key == name {
			return string(each.Value)
		}
	}
	return ""
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
