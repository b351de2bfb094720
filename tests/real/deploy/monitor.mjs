// Validates a ServiceMonitor on standard input by the schema of the operator.
import { readFileSync } from 'node:fs';
import { ServiceMonitor } from '@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/ServiceMonitor';

new ServiceMonitor(JSON.parse(readFileSync(0, 'utf8'))).validate();
